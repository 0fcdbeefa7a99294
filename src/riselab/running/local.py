"""Runs as processes on this machine: a crash of one does not touch the others.

Workers are reused, since starting Python and importing torch takes longer than a small run.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from riselab.running.folder import LOG
from riselab.running.processes import RANKS, death
from riselab.running.schedule import Ended
from riselab.running.worker import DONE, LOST, RunOrder, thread_limits

GRACE = 5.0  # seconds between asking a worker to end and making it


class _Worker:
    """A process for one run after the other, begun with the log of the first."""

    def __init__(self, slot: int, environment: dict[str, str], log: Path) -> None:
        self.slot, self.order, self._heard = slot, "", b""
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "riselab.running.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                bufsize=0,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us; and a group can be ended as one
            )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self.process.poll() is None

    def take(self, order: RunOrder) -> None:
        """Begin a run; only after the last has ended."""
        self.order = order.id
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it died at birth; its end will be seen
            self.process.stdin.write(json.dumps(order.plain()).encode() + b"\n")

    def ended(self) -> Ended | None:
        """How its run ended, or None if it goes on."""
        gone = not self.alive  # before the look: what it said last must not be overlooked
        assert self.process.stdout is not None
        self._heard += self.process.stdout.read() or b""
        if not gone and b"\n" not in self._heard:
            return None
        line, _, self._heard = self._heard.partition(b"\n")
        name, self.order = self.order, ""
        try:
            outcome, message = json.loads(line)
        except ValueError:
            self.signal(signal.SIGKILL)
            return Ended(name, LOST, f"its process {death(self.process.wait())}")
        return Ended(name, outcome, message)

    def signal(self, sign: signal.Signals) -> None:
        """To the process and its helpers."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, sign)

    def close(self) -> None:
        """The process, and its helpers, go when nobody waits for them."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self.signal(signal.SIGKILL)
        self.process.wait()


class LocalEngine:
    """Runs as processes on this machine."""

    def __init__(self, workers: int, threads: int, processes: int = 1) -> None:
        self.workers, self.threads, self.processes = workers, threads, processes
        self.devices = devices()
        self._workers: dict[int, _Worker] = {}

    @property
    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.order]

    def free(self) -> bool:
        """Whether there are fewer runs than workers."""
        return len(self._busy) < self.workers

    def start(self, order: RunOrder) -> None:
        """Start one run, in a process that has done one before if there is one."""
        folder = Path(order.folder)
        folder.mkdir(parents=True, exist_ok=True)
        slots = set(range(self.workers)) - {worker.slot for worker in self._busy}
        slot = min(slots, key=lambda one: (one not in self._workers, one))
        worker = self._workers.get(slot)
        if worker is None or not worker.alive:
            self._drop(slot)
            environment = _outside() | thread_limits(self.threads) | self._device(slot)
            worker = self._workers[slot] = _Worker(slot, environment, folder / LOG)
        worker.take(order)

    def poll(self, seconds: float) -> Sequence[Ended]:
        """The runs that ended, at the latest after ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            pairs = [(worker, worker.ended()) for worker in self._busy]
            found = [(worker, ended) for worker, ended in pairs if ended is not None]
            for worker, ended in found:
                # Who knows what a run that failed, or one of several processes, left behind.
                if ended.outcome != DONE or self.processes > 1:
                    self._drop(worker.slot)
            if found or time.monotonic() >= deadline:
                return [ended for _, ended in found]
            time.sleep(0.02)

    def stop(self) -> None:
        """End all runs: ask first, then kill."""
        for worker in self._busy:
            worker.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for worker in self._busy:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
        for slot in list(self._workers):
            self._drop(slot)

    def _drop(self, slot: int) -> None:
        if worker := self._workers.pop(slot, None):
            worker.close()

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
