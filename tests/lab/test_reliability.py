"""Reliability, by doing it: kills, two at once, full disks, folders that are none."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from riselab.running import folder as run_lock
from riselab.running.worker import execute, order_for
from tail import PATIENCE, by_default

from .conftest import EXPERIMENT, cells_of, rise, rise_process

Write = Callable[..., Path]
Capture = pytest.CaptureFixture[str]

LONG = EXPERIMENT.split("[[rows]]")[0].replace("[0, 1]", "[0]").replace("steps = 3", "steps = 400")
LONG += '[[rows]]\nlabel = "long"\n'


def content_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def step_of(folder: Path) -> int:
    """How far the run is, by its checkpoint."""
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads((folder / "checkpoints" / "state").read_text())["step"])
    return 0


def worker_of(folder: Path) -> int:
    """The process at the run, if there is one."""
    found = re.match(r"process (\d+) on ", run_lock.holder(folder))
    return int(found[1]) if found and run_lock.taken(folder) else 0


def kill_at_random(folder: Path, argv: list[Any], luck: random.Random) -> int:
    """Start it, kill its worker up to three times and then the command itself; how many kills."""
    with rise_process(*argv) as process:
        kills, worker = luck.randint(0, 3), 0
        for _ in range(kills):
            worker = next_worker(folder, worker)
            time.sleep(luck.uniform(0, 0.12))
            os.kill(worker, signal.SIGKILL)
        next_worker(folder, worker)
        time.sleep(luck.uniform(0, 0.12))
        process.kill()
        process.communicate()
    wait_for(lambda: not run_lock.taken(folder))  # its worker follows it
    return kills + 1


def next_worker(folder: Path, last: int) -> int:
    def other() -> int:
        found = worker_of(folder)
        return 0 if found == last else found

    return int(wait_for(other))


@pytest.mark.parametrize("wanted", by_default(3, slow=[20]))
def test_some_kills_later_the_record_is_the_same(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int
) -> None:
    path, luck = write(LONG), random.Random(1)
    (cell,) = cells_of(path)
    argv = ["run", path, "--out", tmp_path / "killed"]
    folder = tmp_path / "killed" / cell.folder
    kills, steps = 0, []
    monkeypatch.setenv("FAKE_PAUSE", "0.01")
    while kills < wanted:
        kills += kill_at_random(folder, argv, luck)
        steps.append(step_of(folder))
        assert not (folder / "record.json").exists(), "too quick to be killed"
    assert steps == sorted(steps), "nothing is done twice"
    monkeypatch.delenv("FAKE_PAUSE")
    assert rise(*argv) == 0
    assert rise("run", path, "--out", tmp_path / "calm") == 0
    killed = content_of(folder / "record.json")
    calm = content_of(tmp_path / "calm" / cell.folder / "record.json")
    assert killed["run"]["resumed"] >= wanted
    assert calm["run"]["resumed"] == 0
    del killed["run"], calm["run"]
    assert json.dumps(killed) == json.dumps(calm)


def test_two_commands_share_the_work(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PAUSE", "0.03")
    path, out = small, tmp_path / "out"
    argv = ["run", path, "--out", out, "--workers", 2]
    with rise_process(*argv) as one, rise_process(*argv) as two:
        texts = [process.communicate()[0] for process in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0)
    assert sum(text.count(": done in ") for text in texts) >= 6
    for text in texts:
        assert "6 of 6 runs done" in text
    for cell in cells_of(path):
        folder = out / cell.folder
        assert content_of(folder / "record.json")["id"] == cell.id
        assert len((folder / "starts.txt").read_text().split()) == 1, "neither repeats the other"


def test_what_runs_elsewhere_is_waited_for(
    write: Write, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PAUSE", "0.001")
    path, out = write(LONG), tmp_path / "out"
    (cell,) = cells_of(path)
    with rise_process("run", path, "--out", out) as first:
        wait_for(lambda: worker_of(out / cell.folder))
        assert rise("show", path, "--out", out) == 0
        assert "1 runs: 1 running" in capsys.readouterr().out
        assert rise("run", path, "--out", out) == 0
        first.communicate()
    text = capsys.readouterr().out
    assert re.search(r"long seed 0: running elsewhere \(process \d+ on ", text)
    assert "long seed 0: done elsewhere" in text


def test_a_run_that_is_taken_is_left_alone(write: Write, tmp_path: Path) -> None:
    (cell,) = cells_of(write(LONG))
    folder = tmp_path / cell.folder
    folder.mkdir(parents=True)
    with run_lock.held(folder):
        assert run_lock.taken(folder)
        outcome, message = execute(order_for(cell, tmp_path, work="lab.fake_workload"))
    assert (outcome, message) == ("elsewhere", run_lock.holder(folder))
    assert not run_lock.taken(folder)
    assert not (folder / "starts.txt").exists()


def test_an_interrupt_stops_the_workers_and_says_how_to_go_on(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PAUSE", "0.1")
    path, out = write(LONG), tmp_path / "out"
    (cell,) = cells_of(path)
    with rise_process("run", path, "--out", out) as process:
        worker = wait_for(lambda: worker_of(out / cell.folder))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert err == "stopping; the same command continues from here\nrise run: interrupted\n"
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def unwritable_is_one_line(capsys: Capture, reason: str) -> None:
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert err[0].startswith("rise run: error: ")
    assert reason in err[0]


def test_a_folder_that_is_none(small: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("")
    assert rise("run", small, "--out", tmp_path / "file" / "out") == 1
    unwritable_is_one_line(capsys, "/out' (Not a directory)")


def test_a_file_in_the_way_of_a_run(small: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "small").write_text("")
    assert rise("run", small, "--out", tmp_path / "out") == 1
    unwritable_is_one_line(capsys, "cannot be written (Not a directory)")


def test_a_full_disk_ends_everything_with_one_line(
    write: Write, tmp_path: Path, capsys: Capture
) -> None:
    row = '[[rows]]\nlabel = "a"\nhost = { name = "full" }\n'
    text = EXPERIMENT.split("[[rows]]")[0] + row
    assert rise("run", write(text), "--out", tmp_path / "out", "--workers", 1) == 1
    unwritable_is_one_line(capsys, "cannot be written (No space left on device)")
    assert not list((tmp_path / "out").rglob("record.json"))


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few pages."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("room", [0, 1, 3])
def test_a_disk_that_fills_up(
    write: Write, tiny: Path, capsys: Capture, room: int, tmp_path: Path
) -> None:
    path = write(LONG.replace("steps = 400", "steps = 3"))
    (cell,) = cells_of(path)
    with contextlib.suppress(OSError), (tiny / "ballast").open("wb", buffering=0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    size = (tiny / "ballast").stat().st_size
    os.truncate(tiny / "ballast", size - 4096 * room)
    code = rise("run", path, "--out", tiny)
    if code:
        unwritable_is_one_line(capsys, "(No space left on device)")
        assert not list(tiny.rglob("record.json"))
        assert not list(tiny.rglob(".record*"))
    (tiny / "ballast").unlink()
    assert rise("run", path, "--out", tiny) == 0, "with room again it goes on"
    assert content_of(tiny / cell.folder / "record.json")["id"] == cell.id
