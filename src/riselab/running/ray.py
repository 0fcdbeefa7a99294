"""Runs as Ray tasks: on this machine, or on a cluster that shares the output folder."""

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from risegrad.common.environment import cores
from risegrad.common.imports import need
from riselab.running.schedule import Ended
from riselab.running.worker import FAILED, LOST, RunOrder, logged, thread_limits


class RayEngine:
    """Runs are never retried by Ray: who does what again is decided in one place, not two."""

    def __init__(self, workers: int | None, threads: int, address: str | None = None) -> None:
        self.ray = _import()
        self.threads = threads
        self._running: dict[Any, str] = {}
        self._ours = not self.ray.is_initialized()
        if self._ours:
            self._join(address or os.environ.get("RAY_ADDRESS"), workers or 1)
        there = self.ray.cluster_resources()
        self.workers = workers or max(1, int(there.get("CPU", 1)) // threads)
        gpus = float(there.get("GPU", 0))
        self._work = self.ray.remote(
            num_cpus=threads,
            num_gpus=min(1.0, gpus / self.workers),
            max_calls=1,  # Ray would also reuse a worker whose run failed
            max_retries=0,
        )(perform)

    def _join(self, address: str | None, workers: int) -> None:
        # None of Ray's own output: the table is ours, and what runs print is in their logs.
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
        if address:
            del quiet["include_dashboard"]
            try:
                reach(address)
                self.ray.init(address=address, **quiet)
            except OSError as error:  # a ConnectionError is one
                raise RuntimeError(
                    f"no Ray cluster answers at {address!r}; one with token authentication also "
                    f"needs its token (RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH): {error}"
                ) from error
        else:
            # At least as many as the workers need: a machine may count fewer than was asked for.
            self.ray.init(num_cpus=max(cores(), workers * self.threads), **quiet)

    def free(self) -> bool:
        """Whether there are fewer runs than workers."""
        return len(self._running) < self.workers

    def start(self, order: RunOrder) -> None:
        """Start one run as a Ray task."""
        self._running[self._work.remote(order.plain(), self.threads)] = order.id

    def poll(self, seconds: float) -> Sequence[Ended]:
        """The runs that ended, at the latest after ``seconds``."""
        if not self._running:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(
            list(self._running), num_returns=len(self._running), timeout=seconds
        )
        return [Ended(self._running.pop(task), *self._answer(task)) for task in ready]

    def _answer(self, task: Any) -> tuple[str, str]:
        errors = self.ray.exceptions
        try:
            outcome, message = self.ray.get(task)
        except errors.RayTaskError as error:
            return FAILED, str(error)
        except errors.RayError as error:
            return LOST, f"its Ray worker died ({type(error).__name__})"
        return outcome, message

    def stop(self) -> None:
        """Cancel all runs, and end Ray if we started it."""
        for task in self._running:
            self.ray.cancel(task, force=True)
        self._running.clear()
        if self._ours:
            self.ray.shutdown()


def reach(address: str) -> None:
    """Fail at once if nothing answers: Ray itself tries for many minutes, silently."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def perform(plain: dict[str, Any], threads: int) -> tuple[str, str]:
    """What a Ray worker does; the same as ``riselab.running.worker`` with other pipes."""
    os.environ.update(thread_limits(threads))
    return logged(RunOrder(**plain))


def _import() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    return need("ray", "ray", "--engine ray")
