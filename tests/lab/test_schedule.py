"""The schedule by itself, with an engine that does nothing: what it looks at and decides."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from riselab.experiments.cells import RunCell
from riselab.running import folder as run_lock
from riselab.running import schedule as run_schedule
from riselab.running.schedule import RETRIES, Ended, Schedule, Tally, Unwritable
from riselab.running.worker import DONE, ELSEWHERE, LOST, UNWRITABLE, RunOrder, order_for

from .conftest import cells_of


class Pretend:
    """Ends what was started at the next poll, as told: a list of outcomes, or done."""

    def __init__(self, workers: int = 2, outcomes: dict[str, list[str]] | None = None) -> None:
        self.workers, self.outcomes = workers, outcomes or {}
        self.running: deque[str] = deque()
        self.started: Counter[str] = Counter()

    def free(self) -> bool:
        return len(self.running) < self.workers

    def start(self, order: RunOrder) -> None:
        self.running.append(order.id)
        self.started[order.id] += 1

    def poll(self, seconds: float) -> Sequence[Ended]:
        ended = [Ended(name, self._outcome(name), "words") for name in self.running]
        self.running.clear()
        return ended

    def _outcome(self, name: str) -> str:
        left = self.outcomes.get(name)
        return left.pop(0) if left else DONE

    def stop(self) -> None:
        self.running.clear()


class Listener:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def tick(self, tally: Tally) -> None:
        assert tally.left >= 0


def scheduled(cells: list[RunCell], out: Path, engine: Pretend) -> tuple[Schedule, Listener]:
    listener = Listener()
    found = Schedule(cells, out, lambda cell: order_for(cell, out, "none"), listener)
    found.sort()
    found.run(engine)
    return found, listener


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            counts[name] += 1
            return function(*args)

        return call

    monkeypatch.setattr(run_schedule, "look", counting("look", run_schedule.look))
    monkeypatch.setattr(run_lock, "taken", counting("taken", run_lock.taken))
    return counts


def test_a_thousand_runs_are_looked_at_twice_each(
    write: Callable[..., Path], tmp_path: Path, counted: Counter[str]
) -> None:
    qs = ", ".join(map(str, range(1, 101)))
    text = f"""name = "many"\ndomain = "counting"\nseeds = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
[[rows]]\nlabel = "RISE"\n[rows.vary]\n"rule.q" = [{qs}]\n"""
    cells = cells_of(write(text))
    assert len(cells) == 1000
    engine = Pretend()
    found, listener = scheduled(cells, tmp_path, engine)
    assert found.tally.done == 1000
    assert set(engine.started.values()) == {1}
    assert list(engine.started) == [cell.id for cell in cells], "in the order of the file"
    assert counted["look"] == 2000
    assert counted["taken"] == 1000
    assert len(listener.said) == 2000


def test_a_worker_that_dies_is_given_another_chance_and_not_more(
    small: Path, tmp_path: Path
) -> None:
    cells = cells_of(small)
    once, ever = cells[0].id, cells[1].id
    engine = Pretend(outcomes={once: [LOST], ever: [LOST] * 99})
    (tmp_path / cells[1].folder).mkdir(parents=True)
    found, _ = scheduled(cells, tmp_path, engine)
    assert engine.started[once] == 2
    assert engine.started[ever] == 1 + RETRIES
    assert list(found.tally.failed) == [ever]
    assert found.tally.done == 5
    assert "words, 4 times" in (tmp_path / cells[1].folder / "error.txt").read_text()


def test_what_is_taken_after_all_is_tried_later(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_schedule, "PATIENCE", 0.0)
    cells = cells_of(small)
    engine = Pretend(outcomes={cells[0].id: [ELSEWHERE, ELSEWHERE]})
    found, listener = scheduled(cells, tmp_path, engine)
    assert engine.started[cells[0].id] == 3
    assert found.tally.done == 6
    assert "FO seed 0: running elsewhere (words)" in listener.said


def test_an_output_that_takes_nothing_more_ends_everything(small: Path, tmp_path: Path) -> None:
    cells = cells_of(small)
    engine = Pretend(outcomes={cells[0].id: [UNWRITABLE]})
    with pytest.raises(Unwritable, match="words"):
        scheduled(cells, tmp_path, engine)
    assert len(engine.started) == 2


@pytest.mark.parametrize("retry", [False, True])
def test_what_failed_elsewhere_in_the_meantime_is_not_repeated(
    small: Path, tmp_path: Path, retry: bool
) -> None:
    cells = cells_of(small)
    engine, listener = Pretend(), Listener()
    found = Schedule(cells, tmp_path, lambda cell: order_for(cell, tmp_path, "none"), listener)
    found.sort(retry)
    folder = tmp_path / cells[3].folder
    folder.mkdir(parents=True)
    (folder / "error.txt").write_text("reason")
    tally = found.run(engine)
    assert engine.started[cells[3].id] == retry
    assert tally.done == 5 + retry
    assert [reason for _, reason in tally.failed.values()] == ([] if retry else ["reason"])
