"""Workers of the local engine: one that did a run well does the next, others are replaced."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from risegrad.common import environment
from riselab.running.folder import LOG
from riselab.running.local import LocalEngine
from riselab.running.schedule import Ended
from riselab.running.worker import DONE, FAILED, LOST, RunOrder, order_for

from .conftest import EXPERIMENT, FAKE, cells_of

HEAD = EXPERIMENT.split("[[rows]]")[0].replace("[0, 1]", "[0]")


def order(folder: Path, host: str, number: int) -> RunOrder:
    """A run that behaves as the host does."""
    path = folder / f"{number}.toml"
    path.write_text(f'{HEAD}[host]\nname = "{host}"\n[[rows]]\nlabel = "row {number}"\n')
    return order_for(cells_of(path)[0], folder / f"out {number}", work=FAKE)


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    made = LocalEngine(workers=1, threads=1)
    yield made
    made.stop()
    assert not made._workers


def done(engine: LocalEngine, order: RunOrder) -> tuple[Ended, int]:
    """How it ended, and the process that did it."""
    engine.start(order)
    assert not engine.free()
    process = engine._workers[0].process.pid
    (ended,) = engine.poll(60)
    assert engine.free()
    return ended, process


def test_a_worker_does_one_run_after_the_other(engine: LocalEngine, tmp_path: Path) -> None:
    orders = [order(tmp_path, host, n) for n, host in enumerate(("talks", "well", "talks"))]
    ended = [done(engine, one) for one in orders]
    assert [one.outcome for one, _ in ended] == [DONE] * 3
    assert [one.id for one, _ in ended] == [one.id for one in orders]
    assert len({process for _, process in ended}) == 1
    logs = [(Path(one.folder) / LOG).read_text() for one in orders]
    assert [text.count("hello from the run") for text in logs] == [1, 0, 1], "each to its own log"


@pytest.mark.parametrize(("host", "outcome"), [("fails", FAILED), ("dies", LOST)])
def test_a_worker_whose_run_failed_is_replaced(
    engine: LocalEngine, tmp_path: Path, host: str, outcome: str
) -> None:
    ended, first = done(engine, order(tmp_path, host, 0))
    assert ended.outcome == outcome
    again, second = done(engine, order(tmp_path, "well", 1))
    assert again.outcome == DONE
    assert second != first


def test_a_worker_that_dies_between_runs_is_replaced(engine: LocalEngine, tmp_path: Path) -> None:
    _, first = done(engine, order(tmp_path, "well", 0))
    worker = engine._workers[0].process
    worker.kill()
    worker.wait()
    ended, second = done(engine, order(tmp_path, "well", 1))
    assert ended.outcome == DONE
    assert second != first


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux can forget")
def test_the_memory_of_an_earlier_run_does_not_count() -> None:
    environment.watch_memory()
    before = environment.memory()["peak_rss_bytes"]
    held = bytearray(b"x" * 2**28)
    assert environment.memory()["peak_rss_bytes"] >= before + 2**27
    del held
    environment.watch_memory()
    assert environment.memory()["peak_rss_bytes"] < before + 2**27
