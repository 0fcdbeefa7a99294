"""Engines: where runs happen. Each starts orders, and tells how they ended."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from risegrad.lab.running.run_execution import RunOrder


class Ended(NamedTuple):
    """How one run ended."""

    id: str
    outcome: str
    message: str


class Engine(Protocol):
    """Where runs happen."""

    workers: int

    def free(self) -> bool:
        """Whether one more order can be started now."""

    def start(self, order: RunOrder) -> None:
        """Start one run; only while ``free()``."""

    def poll(self, seconds: float) -> Sequence[Ended]:
        """What ended; waits at most so long for something to end."""

    def stop(self) -> None:
        """End all that is running; what runs left on disk stays good."""
