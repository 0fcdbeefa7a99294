"""``risegrad.keep`` in a run: kept examples of every session pull at the steps of later ones.

The rule ``keep`` shapes these steps, too; the addition ``distill`` is the pull alone, and
``dark-replay`` has it in the loss, beside labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from risegrad.common.seeds import generator_for, seed_for
from risegrad.keeping.answers import Answers
from risegrad.keeping.examples import Group, KeepSettings, Kept, kept_of, taken
from risegrad.keeping.keeper import Keeper
from risegrad.keeping.looking import Look
from risegrad.keeping.pull import kept_losses
from risegrad.memory.layers import role_of
from risegrad.memory.memory import Memory
from riselab.common.settings import Count, NonNegative, Positive, PositiveInt
from riselab.continual.additions.addition import AdditionSettings, Training
from riselab.continual.additions.memory import LooksBack, MemorySettings, grown
from riselab.continual.host import Ref, Session, SessionBatch, differentiable


class Keeps(LooksBack):
    """Keeps examples of each session with what the model answered to them when it was over.

    What it answered is its scores of all classes seen by then: rows of later classes are new.
    """

    needs_exact = True
    pulls = True
    uses = ("of", "examples")

    def __init__(self, seed: int, damping: float | None = None) -> None:
        super().__init__(MemorySettings(), seed)  # a run gives it its own
        self.damping = damping
        self.kept: Kept | None = None

    def end(self, training: Training) -> None:
        super().end(training)
        started = time.perf_counter()
        settings = KeepSettings(
            examples=max(2, self.settings.examples),
            damping=self.damping,
            seed=seed_for(self.seed, "keep", training.session.task) % 2**31,
        )
        look, settings = self._look(training, settings)
        with differentiable(training.session.parameters.values()):
            memory, new = kept_of(look, [*self.batches(training)], settings)
        if memory is not None and self.memory is not None:
            memory = grown(self.memory, training.session.module) + memory
        self.memory, self.kept = memory, new if self.kept is None else _both(self.kept, new)
        self.seconds.append(time.perf_counter() - started)
        self.sizes.append(self.kept.bytes + (0 if memory is None else memory.bytes))

    def _look(self, training: Training, settings: KeepSettings) -> tuple[Look, KeepSettings]:
        """The way to the model's answers. Every process sees all examples: no sums over them."""
        session = training.session
        if self.settings.of == "features":
            rows = self.rows(training, session.features)
            return Look(session.module, rows, None, False), replace(settings, of=rows)
        rows = self.rows(training, session.logits or session.predictions)
        look = Look(session.module, "predictions", rows, False)
        return look, replace(settings, of="predictions", predict=rows)

    def state_dict(self) -> dict[str, Any]:
        if (kept := self.kept) is None:
            return super().state_dict()
        parts = {
            "pulled": [_plain(group) for group in kept.pulled],
            "held": [_plain(group) for group in kept.held],
            "seen": kept.seen,
        }
        return super().state_dict() | {"kept": parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.kept = None
        if "kept" in state:
            kept = state["kept"]
            pulled, held = (tuple(map(_group, kept[part])) for part in ("pulled", "held"))
            self.kept = Kept(pulled, held, kept["seen"])


def _plain(group: Group) -> dict[str, Any]:
    return vars(group) | {"answers": vars(group.answers)}


def _group(plain: Mapping[str, Any]) -> Group:
    return Group(**{**plain, "answers": Answers(**plain["answers"])})


def _both(old: Kept, new: Kept) -> Kept:
    """All of both: a run says how many of each session it keeps, and none of them makes room."""
    return Kept((*old.pulled, *new.pulled), (*old.held, *new.held), old.seen + new.seen)


class Keep(Keeps):
    """A ``Keeper`` on each optimizer, from the second session on.

    With ``damping`` it is the rule ``keep``, on groups that have it; without, the pull alone, on
    all groups.
    """

    name = "keep"
    serves = "examples"

    def __init__(
        self, seed: int, *, pull: int, budget: float, damping: float | None = None
    ) -> None:
        super().__init__(seed, damping)
        self.pull, self.budget = pull, budget or None
        self.keepers: dict[str, Keeper] = {}
        self._counts: dict[str, dict[str, Any]] = {}
        """Of the keepers of the last session, by the name of their first group."""

    def begin(self, training: Training) -> None:
        self.keepers = {}
        if self.kept is None:
            return
        settings = KeepSettings(
            budget=self.budget, pull=self.pull, damping=self.damping, seed=self.seed
        )
        look, settings = self._look(training, settings)
        for group in training.session.groups:
            optimizer = training.optimizers[group.name]
            known = any(keeper.optimizer is optimizer for keeper in self.keepers.values())
            if known or not (self.damping is None or group.rule.kind.needs == "examples"):
                continue
            memory = self._memory_for(optimizer, training.session)
            keeper = Keeper(look, optimizer, memory, self.kept, settings)
            if group.name in self._counts:  # strength and pulls go on
                keeper.load_state_dict(self._counts[group.name])
            self.keepers[group.name] = keeper
            if keeper.handle is not None:
                training.shaping[group.name] = keeper.handle

    def _memory_for(self, optimizer: Optimizer, session: Session) -> Memory | None:
        """The memory, if it covers something that the optimizer trains."""
        if self.memory is None:
            return None
        memory = grown(self.memory, session.module)
        held = {id(p) for settings in optimizer.param_groups for p in settings["params"]}
        names = session.module.named_parameters()
        covered = any(id(p) in held and role_of(name).layer in memory for name, p in names)
        return memory if covered else None

    def end(self, training: Training) -> None:
        for name, keeper in self.keepers.items():
            self._counts[name] = keeper.state_dict()
            keeper.detach()
        self.keepers = {}
        super().end(training)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"counts": dict(self._counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._counts = dict(state["counts"])


@dataclass(frozen=True)
class DistillSettings(AdditionSettings):
    """How often and how hard kept examples pull; ``memory`` says how many there are."""

    name: str = "distill"
    pull: PositiveInt = 1
    """Every how many steps."""
    budget: NonNegative = 0.0
    """Nats per prediction that may be lost: the pull is as strong as that needs; 0: no budget."""
    summary: ClassVar[str] = "the pull of risegrad.keep alone: kept inputs with stored scores"

    def make(self, seed: int) -> Distill:
        """The pull with these settings."""
        return Distill(seed, pull=self.pull, budget=self.budget)


class Distill(Keep):
    """The pull alone."""

    name = "distill"
    serves = ""


@dataclass(frozen=True)
class DarkReplaySettings(AdditionSettings):
    """Weight of the scores, and how many labelled examples a batch gets."""

    name: str = "dark-replay"
    weight: Positive = 1.0
    """Of the distance from the stored scores, beside the loss."""
    batch: Count = 0
    """Labelled examples that join each batch; 0: as many as the batch has."""
    summary: ClassVar[str] = "DER++: kept inputs with stored scores, and with labels, in the loss"

    def make(self, seed: int) -> DarkReplay:
        """DER++ with these settings."""
        return DarkReplay(self, seed)


class DarkReplay(Keeps):
    """Kept examples join every batch, and the loss has the distance from the stored scores."""

    name = "dark-replay"
    pulls = False
    joins = True

    def __init__(self, chosen: DarkReplaySettings, seed: int) -> None:
        super().__init__(seed)
        self.chosen = chosen
        self._distance: Callable[[], Tensor] | None = None

    def begin(self, training: Training) -> None:
        self._distance = None
        if self.kept is None:
            return
        look, _ = self._look(training, KeepSettings(damping=None))
        groups, seed = self.kept.pulled, seed_for(self.seed, self.name) % 2**31

        def distance() -> Tensor:
            with look.quietly():
                losses = kept_losses(look, taken(groups, training.step, seed))
                return torch.stack([*losses]).sum()

        self._distance = distance

    def replayed(self, task: int, epoch: int, batch: int, size: int) -> list[Ref]:
        generator = generator_for(self.seed, self.name, task, epoch, batch)
        order = torch.randperm(len(self.refs), generator=generator).tolist()
        return [self.refs[place] for place in order[: self.chosen.batch or size]]

    def penalty(
        self, session: Session, batch: SessionBatch, logits: Tensor | None
    ) -> Tensor | None:
        return None if self._distance is None else self.chosen.weight * self._distance()
