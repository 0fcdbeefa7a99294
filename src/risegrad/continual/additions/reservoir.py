"""A memory of references to examples: a uniform sample of everything seen so far."""

from __future__ import annotations

from typing import Any

import torch

from risegrad.common.seeds import generator_for
from risegrad.continual.additions.addition import Addition, Training
from risegrad.continual.session import Ref


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

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state)
