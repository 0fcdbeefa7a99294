"""Several processes for one run: the same record as one process, and no waiting for the dead.

All of it by the command line, in an environment that says nothing about processes or devices.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from riselab.records.record import read_records
from riselab.running import processes as run_processes
from tail import PATIENCE

from .conftest import program

ROOT = Path(__file__).parents[2]
WATCHED, TOGETHER = "lab.watched", "lab.together"

TINY = """
name = "tiny"
domain = "vision"
[stream]
name = "digits"
image_size = 8
base = 2
increment = 2
classes = 4
train_per_class = 8
test_per_class = 6
[model]
name = "vit_tiny_patch16_224"
pretrained = false
width = 16
depth = 1
heads = 2
patch = 4
adapter_width = 4
adapter_dropout = 0.0
[host]
name = "zo-fc-rise"
[adapter]
epochs = 2
lr = 0.1
[head]
epochs = 1
[loop]
batch = 6
[[rows]]
label = "RISE"
"""


SIMPLE = """
name = "simple"
domain = "adding"
host = {{ name = "{}" }}
rows = [{{ label = "one" }}]
"""

Simple = Callable[[str], Path]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def start(*words: object, workload: str = TOGETHER, first: tuple[str, ...] = ()) -> Any:
    """``rise`` as a user starts it; nothing of the tests' own environment reaches it."""
    return subprocess.Popen(
        [sys.executable, *first, *program(workload)[1:], *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src")]),
        },
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(*words: object, workload: str = TOGETHER, first: tuple[str, ...] = ()) -> tuple[int, str]:
    process = start("run", *words, "--threads", 1, workload=workload, first=first)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out + err


def told(out: Path) -> list[dict[str, int]]:
    """What the processes of a run say they did, by rank."""
    every = [json.loads(path.read_text()) for path in out.rglob("told-*.json")]
    return sorted(every, key=lambda one: one["rank"])


def test_two_processes_share_a_run_and_leave_the_record_of_one(tiny: Path, tmp_path: Path) -> None:
    """With a checkpoint after every epoch, which only one of them may write."""
    results = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        often = ("--set", "loop.checkpoint_seconds=0", "--out", out)
        code, text = run(tiny, *often, "--processes", processes, workload=WATCHED)
        assert code == 0, [text, *(path.read_text() for path in out.rglob("*.txt"))]
        ((record,), problems) = read_records([out])
        assert not problems
        results.append(record.result)
    one, two = results
    assert one.scores == two.scores
    for mine, other in zip(one.losses, two.losses, strict=True):
        assert other.loss == pytest.approx(mine.loss, rel=1e-4)
    (alone,), (first, second) = told(tmp_path / "1"), told(tmp_path / "2")
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["count"] == second["count"] == 2
    assert first["mine"] + second["mine"] == first["all"] == second["all"] == alone["all"]
    assert min(first["mine"], second["mine"]) > 0.4 * alone["all"]
    assert (first["saved"], second["saved"]) == (alone["saved"], 0)
    assert alone["saved"] > 4


@pytest.fixture
def simple(tmp_path: Path) -> Simple:
    def write(what: str) -> Path:
        path = tmp_path / "simple.toml"
        path.write_text(SIMPLE.format(what))
        return path

    return write


def notes(out: Path) -> list[str]:
    ((record,), problems) = read_records([out])
    assert not problems
    return list(record.result.notes)


@pytest.mark.slow
def test_torchrun_around_the_command_starts_one_command_each(simple: Simple, out: Path) -> None:
    """Workers of such commands must not wait for each other: each has a run of its own."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    code, text = run(simple("well"), "--out", out, first=torchrun)
    assert code == 0, text
    assert notes(out) == ["1 processes"]


def test_a_process_that_fails_ends_the_run_with_its_error(simple: Simple, out: Path) -> None:
    """At once: the first would wait for ever for one that failed."""
    code, text = run(simple("fails"), "--out", out, "--processes", 2)
    assert code == 1
    assert "failed, RuntimeError: not today" in text
    assert "In process 1 of the run:" in text
    assert next(out.rglob("error.txt")).read_text().strip().endswith("RuntimeError: not today")


@pytest.mark.slow
def test_a_full_disk_is_told_as_with_one_process(simple: Simple, out: Path) -> None:
    code, text = run(simple("full"), "--out", out, "--processes", 2)
    assert code == 1
    assert "cannot be written (No space left on device)" in text


@pytest.mark.slow
def test_a_process_that_is_killed_does_not_end_the_run(simple: Simple, out: Path) -> None:
    code, text = run(simple("killed"), "--out", out, "--processes", 3)
    assert code == 0, text
    assert "its process 1 was ended by SIGKILL; continues from its last checkpoint" in text
    assert notes(out) == ["3 processes"]


@pytest.mark.slow
def test_an_interrupt_ends_all_processes_and_is_no_failure(simple: Simple, out: Path) -> None:
    process = start("run", simple("long"), "--out", out, "--processes", 2)
    until = time.monotonic() + PATIENCE
    while not list(out.rglob("progress")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert err.splitlines()[-2:] == [
        "stopping; the same command continues from here",
        "rise run: interrupted",
    ]
    assert not list(out.rglob("error.txt"))
    assert not _of(out), "processes are left"


class Odd(Exception):
    """Cannot be made again from its arguments, as pickle does."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_an_error_that_cannot_be_pickled_is_told_in_words(tmp_path: Path) -> None:
    try:
        raise Odd(1, 2)
    except Odd as error:
        run_processes._leave(error, tmp_path / "1")
    found, text = pickle.loads((tmp_path / "1").read_bytes())
    assert (type(found), str(found)) == (RuntimeError, "Odd: 1 and 2")
    assert text.strip().endswith("Odd: 1 and 2")


def _of(out: Path) -> list[str]:
    """Processes that have a file below ``out`` open, as the workers have their log."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith(str(out)):
            found.append(target)
    return found


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one(simple: Simple, count: int) -> None:
    code, text = run(simple("well"), "--processes", count)
    assert code == 2
    assert f"--processes must be at least 1, got {count}" in text
