"""An experiment on the fake workload, and ways to run it in and out of this process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import risegrad
from riselab.cli import main
from riselab.experiments.cells import RunCell, expand
from riselab.experiments.file import load_experiment
from riselab.running import worker

from . import fake_workload

TESTS = Path(__file__).parents[1]
FAKE = "lab.fake_workload"


def program(work: str = FAKE) -> list[str]:
    """The command ``rise`` as a process of its own, on another workload than the usual one."""
    return [sys.executable, str(TESTS / "lab" / "on_workload.py"), work]


EXPERIMENT = """
name = "small"
title = "A small one"
domain = "counting"
seeds = [0, 1]
[loop]
steps = 3
[[rows]]
label = "FO"
baseline = true
[[rows]]
label = "RISE"
[rows.vary]
"rule.q" = [4, 8]
"""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are new processes: they find the fake workload, and the package, as this one does."""
    source = Path(risegrad.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (TESTS, source))))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str = EXPERIMENT, name: str = "small") -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def small(write: Callable[..., Path]) -> Path:
    return write()


def cells_of(path: Path, *overrides: str) -> list[RunCell]:
    return expand(load_experiment(path, overrides), fake_workload.read_config)


def rise(*argv: Any) -> int:
    """The command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "WORKLOAD", FAKE)
        return main([*map(str, argv)])


def rise_process(*argv: Any, **options: Any) -> "subprocess.Popen[str]":
    """The command as a process of its own."""
    return subprocess.Popen(
        [*program(), *map(str, argv)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Where the tests themselves run in the background, a shell has made them deaf to it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options,
    )  # fmt: skip
