"""The memory of a run: what each session leaves to be kept, and the steps that it shapes.

One memory serves the rules ``informed`` and ``informed-rise`` and the additions ``kron-anchor`` and
``retract``. It is made at the end of each session from training examples of that session.
"""

from __future__ import annotations

import glob
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from risegrad.common.seeds import generator_for, seed_for
from risegrad.core.attachment import Attachment, attach
from risegrad.core.blocks import listing
from risegrad.memory.factor import Factor, Side
from risegrad.memory.files import packed, unpacked
from risegrad.memory.informed import Informed, right_place
from risegrad.memory.layers import all_layers, role_of
from risegrad.memory.memory import Memory
from risegrad.memory.outputs import Reading
from risegrad.memory.penalty import Anchor, interpolate, retract
from risegrad.memory.remembering import remember
from riselab.common.settings import Checked, Count, Limits, NonNegative, PositiveInt
from riselab.continual.additions.addition import Addition, AdditionSettings, Training
from riselab.continual.host import ParameterGroup, Ref, Session, differentiable

BATCH = 32
"""Examples that are remembered at a time."""
Change = Literal["", "inputs", "outputs", "diagonal", "rotated"]


@dataclass(frozen=True)
class MemorySettings(Checked):
    """What a memory holds of each session, if a rule or an addition needs one."""

    of: Literal["predictions", "features"] = "predictions"
    """Keep the predictions (among the session's classes), or the features behind them."""
    examples: PositiveInt = 256
    """Training examples of each session to use, all if there are fewer."""
    rank: Count = 0
    """Eigenpairs kept of each factor; 0: all."""
    source: Literal["past", "incoming"] = "past"
    """``incoming`` is a control: a memory of the coming task instead of past ones."""
    change: Change = ""
    """For ablations: only the ``inputs`` or the ``outputs`` of each layer, only the ``diagonal`` of
    each factor, or the same spectra in random directions (``rotated``, a control)."""

    def unused(self, used: Collection[str] = ()) -> dict[str, str]:
        """Settings that differ from their defaults and that nothing in the run uses, and why."""
        reason = "is used by the rules informed and informed-rise and by additions with a memory"
        return {
            field.name: f"{reason}; got {getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name not in used and getattr(self, field.name) != field.default
        }


class LooksBack(Addition):
    """Looks at training examples of each session when it is over, and keeps something of them."""

    in_weights = True

    def __init__(self, settings: MemorySettings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.seconds: list[float] = []
        """Of looking, per session."""
        self.sizes: list[int] = []
        """Bytes of all that is kept after each session."""
        self.refs: list[Ref] = []
        """Examples of all sessions so far."""
        self.memory: Memory | None = None

    @property
    def stands_for(self) -> Sequence[Ref]:
        return self.refs

    def end(self, training: Training) -> None:
        task = training.session.task
        self.refs += [(task, n) for n in self.looked_at(task, training.session.examples)]

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"seconds": [*self.seconds], "sizes": [*self.sizes]}
        state["refs"] = [list(ref) for ref in self.refs]
        return state if self.memory is None else state | {"memory": packed(self.memory)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds, self.sizes = [*state["seconds"]], [*state["sizes"]]
        self.refs = [(task, index) for task, index in state.get("refs", [])]
        self.memory = Memory(**unpacked(state["memory"])) if "memory" in state else None

    def looked_at(self, task: int, there: int) -> list[int]:
        """Which of a task's ``there`` training examples are looked at."""
        order = torch.randperm(there, generator=generator_for(self.seed, "memory", task))
        chosen: list[int] = order[: self.settings.examples].tolist()
        return chosen

    def batches(self, training: Training) -> Iterator[dict[str, Any]]:
        """Those of the session; the same in every process, which looks at all of them."""
        session = training.session
        chosen = [(session.task, i) for i in self.looked_at(session.task, session.examples)]
        size = getattr(session.items, "largest", BATCH)
        for start in range(0, len(chosen), size):
            part = session.items.fetch(chosen[start : start + size], session.epochs)
            yield dict(vars(part.to(training.devices.device)))

    def rows(self, training: Training, reading: Callable[[Any], Tensor] | None) -> Reading:
        """How to read a row for each prediction (or its features) off one of these batches."""
        session, devices = training.session, training.devices
        if reading is None:
            raise ValueError(
                f"memory.of = {self.settings.of!r}: the host's session offers no {self.settings.of}"
            )
        kind = type(session.items.fetch([(session.task, 0)], 0))

        def rows(_: nn.Module, batch: Mapping[str, Any]) -> Tensor:
            with devices.autocast():
                return reading(kind(**batch))

        return rows


class RunMemory(LooksBack):
    """Shapes the groups whose rule is informed, and remembers each session when it ends.

    The first session has nothing to keep, so its steps are plain ones.
    """

    name = "memory"
    serves = "memory"
    uses = ("of", "examples", "rank", "source", "change")

    def __init__(self, settings: MemorySettings, seed: int) -> None:
        super().__init__(settings, seed)
        self.sessions = 0

    def begin(self, training: Training) -> None:
        """Shape the groups that ask for it; only a control looks at the incoming task."""
        session = training.session
        if self.settings.source == "incoming" and self.memory is not None:
            self.memory = self._changed(self._remembered(training))
        elif self.memory is not None:
            self.memory = grown(self.memory, session.module)
        for group in session.groups:
            if group.rule.kind.needs == "memory" and self.memory is not None:
                seed = seed_for(self.seed, "shape", session.task, group.name)
                handle = shaped(training.optimizers[group.name], session, group, self.memory, seed)
                if handle is not None:
                    training.shaping[group.name] = handle

    def end(self, training: Training) -> None:
        super().end(training)
        started = time.perf_counter()
        new = self._changed(self._remembered(training))
        if self.memory is None or self.settings.source == "incoming":
            self.memory = new
        else:
            self.memory = grown(self.memory, training.session.module) + new
        self.sessions += 1
        self.seconds.append(time.perf_counter() - started)
        self.sizes.append(self.memory.bytes)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"sessions": self.sessions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.sessions = state["sessions"]

    def _remembered(self, training: Training) -> Memory:
        """In every process the same: each looks at all examples."""
        session, predictions = training.session, self.settings.of == "predictions"
        rows = self.rows(training, getattr(session, self.settings.of))
        layers = layers_of(session)
        # A weight of two layers counts as such only if it trains, also by estimated gradients.
        with differentiable(session.parameters.values()):
            return remember(
                session.module,
                self.batches(training),
                predict=rows if predictions else None,
                of="predictions" if predictions else rows,
                examples=self.settings.examples,
                # As many as the largest layer has: all of them.
                rank=self.settings.rank or max(max(layer.sizes) for layer in layers.values()),
                seed=seed_for(self.seed, "memory draws", session.task) % 2**31,
                layers=[glob.escape(name) for name in layers],
            )

    def _changed(self, memory: Memory) -> Memory:
        change = self.settings.change
        if not change:
            return memory
        if change == "rotated":
            return memory.rotated(self.seed)
        return memory.changed(partial(_without, change))


def layers_of(session: Session) -> dict[str, Any]:
    """The layers that hold what the session trains and that a memory can hold."""
    trained = {role_of(name).layer for name in module_names(session).values()}
    found = {n: layer for n, layer in all_layers(session.module).items() if n in trained}
    if not found:
        raise ValueError(
            "a memory needs linear layers, convolutions, embeddings or norms, and the session "
            f"trains {listing([*session.parameters])}"
        )
    return found


def module_names(session: Session) -> dict[str, str]:
    """For the full name of each trained parameter, the one it has in the session's module."""
    there = {id(p): name for name, p in session.module.named_parameters()}
    return {name: there[id(p)] for name, p in session.parameters.items() if id(p) in there}


def anchor_in(session: Session, memory: Memory | None = None) -> Anchor:
    """The trained parameters as they are now; with a memory, those of layers that it holds."""
    names, parameters = module_names(session), session.parameters
    return Anchor(
        {
            own: parameters[name].detach().clone()
            for name, own in names.items()
            if memory is None or role_of(own).layer in memory
        }
    )


def shaped(
    optimizer: Optimizer, session: Session, group: ParameterGroup, memory: Memory, seed: int
) -> Attachment | None:
    """Inform the steps of a group; None where the memory covers nothing of it."""
    names = module_names(session)
    own: dict[str, Parameter] = {}
    left = []
    for name, parameter in group.parameters.items():
        full = f"{group.name}.{name}"
        own[names.get(full, full)] = parameter
        if not group.rule.shapes(full):
            left.append(glob.escape(names.get(full, full)))
    if not any(role_of(name).layer in memory for name in own):
        return None
    rule = group.rule
    shaper = Informed(
        memory,
        rule.damping,
        match=rule.match,
        q=rule.q if "q" in rule.kind.uses else None,
        exempt=tuple(left),
        seed=seed,
    )
    return attach(optimizer, shaper, params=list(own.items()), on=right_place(optimizer))


def grown(memory: Memory, module: nn.Module) -> Memory:
    """For a head that has new rows: nothing is to be kept there yet."""
    layers = all_layers(module)
    return Memory(
        {
            name: kept.grown(layers[name].shape) if name in layers else kept
            for name, kept in memory.items()
        },
        rank=memory.rank,
        uncovered=memory.uncovered,
        source=memory.source,
    )


def _without(change: Change, _layer: str, part: str, side: Side) -> Side:
    if part not in ("inputs", "outputs") or not isinstance(side, Factor):
        return side  # a norm or a table of tokens is diagonal as it is
    if change == "diagonal":
        return Factor(side.dense().diagonal().diag(), checked=True)
    if change == part:
        return side
    return Factor(torch.eye(side.dim).to(side.like) * side.mean, checked=True)


class WithMemory(Addition):
    """An addition that works with the run's memory, which the run gives it."""

    in_weights: ClassVar[bool] = True
    kept: RunMemory

    @property
    def memory(self) -> Memory | None:
        """What is kept so far; nothing before the first session has ended."""
        return self.kept.memory


@dataclass(frozen=True)
class RetractSettings(AdditionSettings):
    """How far back; ``memory`` says what is remembered."""

    name: str = "retract"
    strength: NonNegative = 1.0
    """What the old counts against the new: 0 keeps all of a session's change."""
    per: Literal["layer", "model"] = "layer"
    """A separate share for each layer, or one for all."""
    summary: ClassVar[str] = "after a session, each layer goes back as far as a memory says"

    def make(self, seed: int) -> Retract:
        """The addition with these settings."""
        return Retract(self)


class Retract(WithMemory):
    """Takes back part of each session's change before anything is remembered of it."""

    name = "retract"

    def __init__(self, settings: RetractSettings) -> None:
        self.settings = settings
        self.before = Anchor({})

    def begin(self, training: Training) -> None:
        self.before = anchor_in(training.session, self.memory)

    def end(self, training: Training) -> None:
        if self.memory is not None:
            settings = self.settings
            retract(
                training.session.module,
                self.before,
                self.memory,
                strength=settings.strength,
                per=settings.per,
            )


@dataclass(frozen=True)
class InterpolateSettings(AdditionSettings):
    """How much of each session's change is kept."""

    name: str = "interpolate"
    share: Annotated[float, Limits(above=0, at_most=1)] = 0.5
    """Of each session's change, after the first session; 1 keeps all of it."""
    summary: ClassVar[str] = "after a session, the weights between those before and after it"

    def make(self, seed: int) -> Interpolate:
        """The addition with these settings."""
        return Interpolate(self)


class Interpolate(Addition):
    """Weight interpolation: one share for all layers, no memory.

    The first session is kept whole: it has nothing before it that would be lost.
    """

    name = "interpolate"
    in_weights = True

    def __init__(self, settings: InterpolateSettings) -> None:
        self.settings = settings
        self.before = Anchor({})

    def begin(self, training: Training) -> None:
        self.before = anchor_in(training.session)

    def end(self, training: Training) -> None:
        if training.session.task:
            interpolate(training.session.module, self.before, self.settings.share)
