"""Progress and what is shown of it."""

import io
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from risegrad.lab.running import run_display as shown
from risegrad.lab.running import run_progress
from risegrad.lab.running.run_display import Lines, Live, Pace, totals, where
from risegrad.lab.running.run_progress import Progress, combined, fraction, latest
from risegrad.lab.running.run_schedule import Running, Tally
from risegrad.lab.running.run_trackers import step_of

from .conftest import WORKLOAD, cells_of


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
    pace, tally = Pace(), Tally(total=4, before=1)
    assert pace.seconds_left(tally, {"a": 0.5}) is None
    now[0] = 10.0
    assert pace.seconds_left(tally, {"a": 0.75}) == pytest.approx(10 / 0.25 * 2.25)
    tally.done = 1  # a is done: half of it was done here
    assert pace.seconds_left(tally, {}) == pytest.approx(10 / 0.5 * 2)


def test_totals() -> None:
    tally = Tally(total=9, before=2, done=1)
    assert totals(tally, None) == "9 runs: 3 done"
    assert totals(tally, 90) == "9 runs: 3 done, about 1:30 left"


def test_lines_say_now_and_then_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.tick(Tally(total=2))
    assert stream.getvalue() == ""
    monkeypatch.setattr(Lines, "EVERY", 0.0)
    lines.tick(Tally(total=2, done=1))
    assert stream.getvalue() == "2 runs: 1 done\n"


def test_the_table_shows_each_run_and_hostile_labels_as_they_are(
    small: Path, tmp_path: Path
) -> None:
    from rich.console import Console
    from rich.live import Live as RichLive

    cell = cells_of(small)[0]
    (tmp_path / "progress").write_text(
        json.dumps({"task": 2, "tasks": 4, "loss": 0.25, "union": 71})
    )
    tally = Tally(total=40, running={str(n): Running(cell, tmp_path, 0.0) for n in range(20)})
    console = Console(file=io.StringIO(), width=100)
    live = Live(RichLive(console=console))
    live.say("[red]not markup[/red]")
    console.print(live.table(tally))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]not markup[/red]" in text
    assert "40 runs: 0 done, 20 running" in text
    assert text.count("task 2/4") == 16
    assert "and 4 more" in text
    assert "0.2500" in text
    assert "71.0" in text


def test_in_a_terminal_the_table_is_live(small: Path, tmp_path: Path) -> None:
    """The command on a pseudo-terminal: it ends well and leaves the cursor visible."""
    outer, inner = pty.openpty()
    argv = ["run", small, "--out", tmp_path / "out", "--workers", "2", *WORKLOAD]
    process = subprocess.Popen(
        [sys.executable, "-m", "risegrad.cli", *map(str, argv)],
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
    assert "6 runs: " in shown_text
    assert "6 of 6 runs done" in shown_text
    assert shown_text.rindex("\x1b[?25h") > shown_text.rindex("\x1b[?25l")


def test_without_rich_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    with shown.display(stream) as watcher:
        watcher.say("hello")
    assert stream.getvalue() == "hello\n"
