"""Runs as processes on this machine, each one new: a crash of one does not touch the others."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from risegrad.lab.running.engine import Ended
from risegrad.lab.running.run_execution import LOST, RunOrder
from risegrad.lab.running.run_folder import LOG
from risegrad.lab.running.run_processes import RANKS, death
from risegrad.lab.running.run_worker import thread_limits

GRACE = 5.0  # seconds between asking a worker to end and making it


class _Running(NamedTuple):
    process: "subprocess.Popen[bytes]"
    slot: int


class LocalEngine:
    """Runs as processes on this machine."""

    def __init__(self, workers: int, threads: int, processes: int = 1) -> None:
        self.workers, self.threads, self.processes = workers, threads, processes
        self.devices = devices()
        self._running: dict[str, _Running] = {}

    def free(self) -> bool:
        """Whether there are fewer runs than workers."""
        return len(self._running) < self.workers

    def start(self, order: RunOrder) -> None:
        """Start one run in a new process."""
        slot = min(set(range(self.workers)) - {entry.slot for entry in self._running.values()})
        folder = Path(order.folder)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "risegrad.lab.running.run_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_outside() | thread_limits(self.threads) | self._device(slot),
                start_new_session=True,  # Ctrl-C is for us; and a group can be ended as one
            )
        self._running[order.id] = _Running(process, slot)
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it died at birth; poll will see that
            process.stdin.write(json.dumps(order.plain()).encode() + b"\n")
            process.stdin.flush()

    def poll(self, seconds: float) -> Sequence[Ended]:
        """The runs that ended, at the latest after ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            ended = [name for name, one in self._running.items() if one.process.poll() is not None]
            if ended or time.monotonic() >= deadline:
                return [Ended(name, *_answer(self._running.pop(name).process)) for name in ended]
            time.sleep(0.02)

    def stop(self) -> None:
        """End all runs: ask first, then kill."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for one in self._running.values():
                with suppress(ProcessLookupError):
                    os.killpg(one.process.pid, sign)
            deadline = time.monotonic() + GRACE
            for one in self._running.values():
                with suppress(subprocess.TimeoutExpired):
                    one.process.wait(max(0.0, deadline - time.monotonic()))
            if all(one.process.poll() is not None for one in self._running.values()):
                break
        self._running.clear()

    def _device(self, slot: int) -> dict[str, str]:
        """With several accelerators and several workers, one for each process in turn."""
        if self.workers < 2 or len(self.devices) < 2:
            return {}
        first = slot * self.processes
        places = [(first + k) % len(self.devices) for k in range(self.processes)]
        chosen = dict.fromkeys(self.devices[place] for place in places)
        return {"CUDA_VISIBLE_DEVICES": ",".join(chosen)}


def _outside() -> dict[str, str]:
    """Our environment without torchrun's variables: a run's processes are its own."""
    return {name: value for name, value in os.environ.items() if name not in RANKS}


def devices() -> list[str]:
    """The accelerators that CUDA would see, without asking it."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip()]
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


def _answer(process: "subprocess.Popen[bytes]") -> tuple[str, str]:
    assert process.stdin is not None
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)  # a helper it left may hold the other end
    text = process.stdout.read() or b""
    process.stdout.close()
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        outcome, message = json.loads(text)
    except ValueError:
        return LOST, f"its process {death(process.returncode)}"
    return outcome, message
