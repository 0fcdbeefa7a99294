"""Progress and what is shown of it."""

import os
import pty
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from riselab.running import progress as run_progress
from riselab.running import progress as shown
from riselab.running.progress import (
    Display,
    Progress,
    combined,
    fraction,
    latest,
    totals,
    where,
)
from riselab.running.schedule import Tally
from riselab.running.trackers import step_of

from .conftest import program


def test_news_is_kept_until_it_is_stale() -> None:
    known = combined({}, {"task": 1, "tasks": 3})
    known = combined(known, {"epoch": 2, "epochs": 2, "batch": 5, "batches": 5, "loss": 0.5})
    assert where(known) == "task 1/3, epoch 2/2, batch 5/5"
    known = combined(known, {"task": 2, "tasks": 3})
    assert known == {"task": 2, "tasks": 3, "loss": 0.5}


@pytest.mark.parametrize(
    ("news", "expected"),
    [
        ({}, 0.0),
        ({"loss": 1}, 0.0),
        ({"task": 1, "tasks": 4}, 0.0),
        ({"task": 4, "tasks": 4, "batch": 10, "batches": 10}, 1.0),
        ({"task": 1, "tasks": 1, "epoch": 2, "epochs": 4}, 0.25),
        ({"task": "x", "tasks": 4}, 0.0),
        ({"task": 9, "tasks": 4}, 1.0),
        ({"task": 2, "tasks": 0}, 1.0),
    ],
)
def test_fraction(news: dict[str, object], expected: float) -> None:
    assert fraction(news) == expected


def test_progress_is_written_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = Progress(tmp_path)
    report({"task": 1, "tasks": 2})
    report({"batch": 1, "batches": 9})
    assert latest(tmp_path) == {"task": 1, "tasks": 2}
    monkeypatch.setattr(run_progress, "PAUSE", 0.0)
    report({"batch": 2, "batches": 9, "odd": Path("x")})
    assert latest(tmp_path) == {"task": 1, "tasks": 2, "batch": 2, "batches": 9, "odd": "x"}
    (tmp_path / "progress").write_text("{")
    assert latest(tmp_path) == {}


def test_progress_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    Progress(tmp_path / "gone")({"task": 1})


def test_steps_grow_and_repeat() -> None:
    news = {"epochs": 2, "batches": 10}
    places = [(t, e, b) for t in (1, 2) for e in (1, 2) for b in range(1, 11)]
    steps = [step_of(news | {"task": t, "epoch": e, "batch": b}) for t, e, b in places]
    assert steps == list(range(1, 41))


def test_the_time_left_counts_only_what_was_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace, tally = Display(), Tally(total=4, before=1)
    assert pace.seconds_left(tally, {"a": 0.5}) is None
    now[0] = 10.0
    assert pace.seconds_left(tally, {"a": 0.75}) == pytest.approx(10 / 0.25 * 2.25)
    tally.done = 1  # a is done: half of it was done here
    assert pace.seconds_left(tally, {}) == pytest.approx(10 / 0.5 * 2)


def test_totals() -> None:
    tally = Tally(total=9, before=2, done=1)
    assert totals(tally, None) == "9 runs: 3 done"
    assert totals(tally, 90) == "9 runs: 3 done, about 1:30 left"


def test_lines_say_now_and_then_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Display()
    lines.tick(Tally(total=2))
    assert capsys.readouterr().out == ""
    lines.pause = 0.0
    lines.tick(Tally(total=2, done=1))
    assert capsys.readouterr().out == "2 runs: 1 done\n"


def test_in_a_terminal_there_is_a_bar(small: Path, tmp_path: Path) -> None:
    """The command on a pseudo-terminal: lines above a bar that ends full."""
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (24, 100))
    argv = ["run", small, "--out", tmp_path / "out", "--workers", "2"]
    process = subprocess.Popen(
        [*program(), *map(str, argv)],
        stdout=inner, stderr=inner, env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(inner)
    text = b""
    while True:
        try:
            text += os.read(outer, 65536)
        except OSError:
            break
    os.close(outer)
    assert process.wait() == 0
    shown_text = text.decode()
    assert "6 runs: 6 done" in shown_text
    assert "6 of 6 runs done" in shown_text


def test_without_tqdm_there_are_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shown, "absent", lambda module: module == "tqdm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with shown.display() as watcher:
        watcher.say("hello")
    assert capsys.readouterr().out == "hello\n"
