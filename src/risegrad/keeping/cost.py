"""What keeping costs, measured on the run itself."""

from __future__ import annotations

import time
from collections import deque
from statistics import fmean, median
from typing import Any

import torch

LATEST = 64
"""Steps that are looked back on."""


class Cost:
    """The time of our own work in each step, beside the time from step to step.

    On a GPU by events in its stream, which nobody waits for before the ratio is asked.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: deque[tuple[Any, list[tuple[Any, Any]]]] = deque(maxlen=LATEST + 1)
        self._since: Any = None

    def step(self) -> None:
        """A step of the optimizer begins, and our work with it."""
        self.start()
        self._steps.append((self._since, []))

    def start(self) -> None:
        """Our work begins."""
        self._since = self._now()

    def stop(self) -> None:
        """Our work is done for now."""
        if self._since is not None and self._steps:
            self._steps[-1][1].append((self._since, self._now()))
        self._since = None

    def ratio(self) -> float | None:
        """Our time over all other time, per step; None before there were two steps."""
        ours = [sum(_seconds(*part) for part in parts) for _, parts in self._steps]
        begun = [begin for begin, _ in self._steps]
        others = [_seconds(a, b) - t for a, b, t in zip(begun, begun[1:], ours, strict=False)]
        return fmean(ours[:-1]) / median(others) if others and median(others) > 0 else None

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _seconds(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
