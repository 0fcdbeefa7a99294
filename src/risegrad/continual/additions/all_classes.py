"""The loss over all classes seen: what naive fine-tuning does, and forgets by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from risegrad.continual.additions.addition import Addition, AdditionSettings


@dataclass(frozen=True)
class AllClassesSettings(AdditionSettings):
    """Nothing to set."""

    name: str = "all-classes"
    summary: ClassVar[str] = "the loss over all classes seen: naive fine-tuning"

    def make(self, seed: int) -> AllClasses:
        """The loss over all classes; it has no settings and draws nothing."""
        return AllClasses()


class AllClasses(Addition):
    """Old classes are wrong answers to every new image, so new ones are learned at their cost."""

    name = "all-classes"
    every_class = True
