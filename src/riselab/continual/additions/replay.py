"""Experience replay: examples of earlier tasks join every batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from risegrad.common.seeds import generator_for
from riselab.common.settings import Count, PositiveInt
from riselab.continual.additions.addition import Addition, AdditionSettings, Training
from riselab.continual.host import Ref


class Reservoir:
    """Vitter's algorithm R: after n examples each is inside with probability ``size / n``.

    It holds (task, index), not data. What it keeps and draws depends on the seed, its ``owner``
    and the moment alone, so a resumed run goes on as it would have.
    """

    def __init__(self, size: int, seed: int, owner: str) -> None:
        self.size, self.seed, self.owner = size, seed, owner
        self.refs: list[Ref] = []
        self.seen = 0

    def see(self, task: int, examples: int) -> None:
        """One pass over all examples of a task."""
        generator = generator_for(self.seed, self.owner, "keep", task)
        for index in range(examples):
            self.seen += 1
            if len(self.refs) < self.size:
                self.refs.append((task, index))
                continue
            place = int(torch.randint(self.seen, (), generator=generator))
            if place < self.size:
                self.refs[place] = (task, index)

    def draw(self, count: int, *moment: int) -> list[Ref]:
        """``count`` different ones at random, or all if there are fewer."""
        generator = generator_for(self.seed, self.owner, "draw", *moment)
        order = torch.randperm(len(self.refs), generator=generator)
        return [self.refs[place] for place in order[:count].tolist()]

    def state_dict(self) -> dict[str, Any]:
        """The kept references and how many examples were seen."""
        return {"refs": [list(ref) for ref in self.refs], "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` returned."""
        self.refs = [(task, index) for task, index in state["refs"]]
        self.seen = state["seen"]


class Remembering(Addition):
    """An addition with a memory that learns of a task when its session is over."""

    def __init__(self, size: int, seed: int) -> None:
        self.memory = Reservoir(size, seed, self.name)

    def end(self, training: Training) -> None:
        self.memory.see(training.session.task, training.session.examples)

    @property
    def stands_for(self) -> Sequence[Ref]:
        return self.memory.refs

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state)


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
    joins = True

    def __init__(self, settings: ReplaySettings, seed: int) -> None:
        super().__init__(settings.size, seed)
        self.settings = settings

    def replayed(self, task: int, epoch: int, batch: int, size: int) -> list[Ref]:
        return self.memory.draw(self.settings.batch or size, task, epoch, batch)


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
