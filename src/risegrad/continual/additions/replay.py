"""Experience replay: examples of earlier tasks join every batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from risegrad.common.declared_fields import Count, PositiveInt
from risegrad.continual.additions.addition import AdditionSettings
from risegrad.continual.additions.reservoir import Remembering
from risegrad.continual.session import Ref


@dataclass(frozen=True)
class ReplaySettings(AdditionSettings):
    """The memory, and how much of it a batch gets."""

    name: str = "replay"
    size: PositiveInt = 500
    """Examples in memory, over all tasks."""
    batch: Count = 0
    """Examples of it that join each batch; 0: as many as the batch has."""
    summary: ClassVar[str] = "experience replay: examples from a reservoir join every batch"

    def make(self, seed: int) -> Replay:
        """Experience replay with these settings."""
        return Replay(self, seed)


class Replay(Remembering):
    """Old examples beside the new ones, so the loss is over all classes seen."""

    name = "replay"

    def __init__(self, settings: ReplaySettings, seed: int) -> None:
        super().__init__(settings.size, seed)
        self.settings = settings

    def replayed(self, task: int, epoch: int, batch: int, size: int) -> list[Ref]:
        return self.memory.draw(self.settings.batch or size, task, epoch, batch)
