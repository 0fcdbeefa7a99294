"""The session that is next as curvature sees it, and what a diagnosis says of it.

Parameters in blocks, both losses, a memory. A host hands over a loss and not what it predicts, but
curvature needs both. Every host, also one from elsewhere, ends in torch's ``cross_entropy``; what
goes in there are its predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from risegrad.common.seeds import generator_for
from risegrad.core.coverage import plain_name
from risegrad.core.draws import mix
from risegrad.core.optimizers import is_adaptive
from risegrad.core.shapers import Rise
from risegrad.curvature.batches import IGNORED
from risegrad.curvature.diagnosis.candidates import (
    NEGATIVE,
    Candidates,
    MemoryFold,
    not_considered,
)
from risegrad.curvature.diagnosis.diagnose import diagnose_operator
from risegrad.curvature.diagnosis.inputs import (
    Measurement,
    Progress,
    adaptive_direction,
    uphill_never,
)
from risegrad.curvature.diagnosis.report import Diagnosis
from risegrad.curvature.estimates import ProductBudget
from risegrad.curvature.objective import Objective
from risegrad.curvature.products import Kind, NetworkOperator, Operator
from risegrad.curvature.space import EXACT, Space, make_space
from risegrad.curvature.targets import CrossEntropies
from risegrad.memory.memory import Memory
from risegrad.memory.remembering import remember
from riselab.common.settings import read
from riselab.continual.additions.memory import RunMemory
from riselab.continual.host import ParameterGroup, Ref, Session, SessionBatch
from riselab.continual.training import SessionTraining
from riselab.foresight.groups import ScaledOperator, joined
from riselab.foresight.reached_point import ReachedPoint
from riselab.foresight.settings import DiagnosisSettings

Plain = dict[str, Tensor]
"""A batch by the names of its fields, which curvature code knows how to move and to count."""


@dataclass
class SessionReader:
    """Reads a session's batches: predictions over the classes before it, and their labels."""

    session: Session
    known: int
    """classes before the session, whose scores count alone; 0: all count"""
    kind: Callable[..., SessionBatch] | None = None

    def batches(self, refs: Sequence[Ref], size: int) -> list[Plain]:
        """The named training examples, in batches."""
        found = []
        for low in range(0, len(refs), size):
            batch = self.session.items.fetch(refs[low : low + size], self.session.epochs)
            self.kind = type(batch)
            found.append({f.name: getattr(batch, f.name) for f in fields(batch)})  # type: ignore[arg-type]
        return found

    def batch(self, plain: Plain) -> SessionBatch:
        """The mapping as the session's own kind of batch again."""
        assert self.kind is not None
        return self.kind(**plain)

    def answers(self, module: nn.Module, plain: Plain) -> tuple[Tensor, Tensor]:
        """Scores and labels, one row for each prediction that counts."""
        with CrossEntropies() as caught:
            self.session.loss(self.batch(plain), True)
        if not caught.calls:
            raise ValueError(
                "the session's loss must be a cross-entropy to be diagnosed, and it calls none"
            )
        scores, target = caught.calls[-1]["input"], caught.calls[-1]["target"]
        if self.known:
            scores = scores[..., : self.known]
        counts = target != IGNORED
        return scores[counts], target[counts]


class IncomingObjective(Objective):
    """The session's own loss with all that its additions put on top, on examples of its task."""

    def __init__(
        self, training: SessionTraining, reader: SessionReader, batches: Sequence[Plain]
    ) -> None:
        super().__init__(training.session.module, batches, None, reader.answers, "incoming")
        self._training, self._reader = training, reader

    def _target(self, batch: Plain) -> Tensor:
        """Not to be found among the predictions: the session's loss has a place for its labels."""
        return self.predict(self.model, batch)[1]

    def loss_of(self, number: int) -> Tensor:
        """What a step on this batch would descend."""
        return self._training.loss(self._reader.batch(self.batches[number]))


@dataclass
class SessionProblem:
    """A point of a stream, and what is measured there."""

    point: ReachedPoint
    training: SessionTraining
    reader: SessionReader
    kept: Objective
    new: IncomingObjective
    shaper: Rise
    """whose blocks are looked at"""
    others: list[Plain]
    """examples of the earlier tasks for a memory, none of which ``kept`` measures"""
    seen: int = 0
    """how many of the examples in ``kept`` the run's own memory was made from"""
    measured: int = 0
    """how many examples are in ``kept``"""

    @staticmethod
    def of(point: ReachedPoint, shaper: Rise, how: DiagnosisSettings) -> SessionProblem:
        """Draw the examples and open the session."""
        training = point.training()
        for parameter in training.session.parameters.values():
            parameter.requires_grad_(True)
        session = training.session
        # Rows of new classes are random before the session: no part of what was learned.
        known = session.seen_before if type(point.host).masks_classes else 0
        reader = SessionReader(session, known)
        wanted = how.examples + how.memory
        drawn = earlier_examples(point, wanted, how.seed)
        # Of fewer than are wanted, both parts get their share.
        cut = -(-len(drawn) * how.examples // wanted)
        seen = len(remembered_examples(point).intersection(drawn[:cut]))
        own = own_examples(session.task, session.examples, how.incoming, how.seed)
        kept = Objective(
            session.module, reader.batches(drawn[:cut], how.batch), None, reader.answers
        )
        new = IncomingObjective(training, reader, reader.batches(own, how.batch))
        others = reader.batches(drawn[cut:], how.batch)
        return SessionProblem(point, training, reader, kept, new, shaper, others, seen, cut)

    @cached_property
    def names(self) -> dict[int, str]:
        """By identity of a parameter, its name in the module."""
        named = self.training.session.module.named_parameters()
        return {id(parameter): plain_name(name) for name, parameter in named}

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """What the session trains, by the names of the module."""
        return {self.names[id(p)]: p for p in self.training.session.parameters.values()}

    @cached_property
    def space_and_gradient(self) -> tuple[Space, Tensor]:
        """The blocks of what the session's loss reaches, and its gradient there."""
        space = self._space()
        gradient, unused = self.new.gradient_and_unused(space, self.parameters)
        if not unused:
            return space, gradient
        space = self._space(still=unused)
        return space, self.new.gradient(space, self.parameters)

    @property
    def space(self) -> Space:
        """The blocks."""
        return self.space_and_gradient[0]

    @property
    def gradient(self) -> Tensor:
        """Of the incoming loss, in the parameters themselves."""
        return self.space_and_gradient[1]

    @cached_property
    def past_gradient(self) -> Tensor:
        """Of the historical loss."""
        return self.kept.gradient(self.space, self.parameters)

    def operator(self, kind: Kind, columns: int, seed: int = 0) -> NetworkOperator:
        """Curvature of the historical loss."""
        own = mix(seed, 7) % 2**31
        return NetworkOperator(self.kept, self.space, self.parameters, kind, columns, seed=own)

    @cached_property
    def scale(self) -> Tensor | None:
        """Roots of the groups' learning rates, by blocks, over the first; None if they agree."""
        rates = {name: rate for _, own, rate in self._groups for name in own}
        found = [rates[self._owner(block.start)] / self.rate for block in self.space.blocks]
        if all(abs(value - 1) < 1e-12 for value in found):
            return None
        return torch.tensor(found, dtype=torch.float64).sqrt()

    @property
    def rate(self) -> float:
        """The learning rate of the first group's next step."""
        return self._groups[0][2]

    def in_steps(self, operator: Operator) -> tuple[Operator, Tensor, Tensor]:
        """Operator and both gradients in coordinates where one rate serves all groups."""
        g, h = self.gradient, self.past_gradient
        if self.scale is None:
            return operator, g, h
        by = self.space.spread(self.scale)
        return ScaledOperator(operator, self.scale), by * g, by * h

    def memory(self, seed: int) -> Memory | None:
        """Of the earlier tasks; None where there are no examples for one."""
        if not self.others:
            return None
        module: nn.Module = self.training.session.module
        return remember(module, self.others, predict=self.reader.answers, examples=None, seed=seed)

    @cached_property
    def _groups(self) -> list[tuple[ParameterGroup, dict[str, Tensor], float]]:
        """Groups that train in the first epoch, with their parameters and rates."""
        found = []
        for group in self.training.session.groups:
            if group.budget.epochs:
                own: dict[str, Tensor] = {self.names[id(p)]: p for p in group.parameters.values()}
                found.append((group, own, group.budget.lr_at(0)))
        if not found:
            raise ValueError(f"session {self.point.task + 1} takes no step: all epochs are 0")
        return found

    def _owner(self, position: int) -> str:
        start = 0
        for name, shape in zip(self.space.names, self.space.shapes, strict=True):
            start += shape.numel() - self.space.rows_left_out.get(name, 0) * shape[1:].numel()
            if position < start:
                return name
        raise IndexError(position)

    def _space(self, still: Collection[str] = ()) -> Space:
        """Group after group: what its rule shapes in the shaper's blocks, the rest exact."""
        spaces = []
        for group, own, _ in self._groups:
            full = {self.names[id(p)]: f"{group.name}.{n}" for n, p in group.parameters.items()}
            shaped = {n: p for n, p in own.items() if self._is_shaped(group, full[n])}
            rest = {n: p for n, p in own.items() if n not in shaped}
            rows = {n: self._rows(full[n]) for n in own}
            for chosen, shaper in ((shaped, self.shaper), (rest, replace(self.shaper, q=EXACT))):
                moving = {n: p for n, p in chosen.items() if n not in still}
                if moving:
                    spaces.append(make_space(moving, shaper, left_out=rows))
        return joined(spaces)

    def _is_shaped(self, group: ParameterGroup, name: str) -> bool:
        exact = group.rule.name == "fo" and any(
            other.rule.name not in ("fo", "zo") for other in self.training.session.groups
        )
        return not exact and group.rule.shapes(name)

    def _rows(self, name: str) -> int:
        seen = self.training.every_class
        return 0 if seen else self.training.session.outside.get(name, 0)


def earlier_examples(point: ReachedPoint, count: int, seed: int) -> list[Ref]:
    """Training examples of all earlier tasks, evenly and in a random order.

    Those that the run's own memory was made from come last, and only where others do not suffice:
    an informed row does not step where they are, and would look better than it is.
    """
    stream, seen = point.host.kit.stream, remembered_examples(point)
    each = -(-count // point.task)
    found: list[Ref] = []
    for task in range(point.task):
        there = len(stream[task].train)
        found += sorted(own_examples(task, there, there, seed), key=seen.__contains__)[:each]
    order = torch.randperm(len(found), generator=generator_for(seed, "earlier")).tolist()
    return sorted((found[place] for place in order), key=seen.__contains__)[:count]


def remembered_examples(point: ReachedPoint) -> set[Ref]:
    """Of the earlier tasks, what the memory of the point's run was made from."""
    return {
        (task, index)
        for addition in point.additions
        if isinstance(addition, RunMemory) and addition.settings.source == "past"
        for task in range(point.task)
        for index in addition.looked_at(task, len(point.host.kit.stream[task].train))
    }


def own_examples(task: int, there: int, count: int, seed: int) -> list[Ref]:
    """Training examples of one task."""
    order = torch.randperm(there, generator=generator_for(seed, "diagnosed", task)).tolist()
    return [(task, index) for index in order[:count]]


def rise_of(settings: Any) -> Rise:
    """The shaper whose blocks and q a run's rule has, whatever the rule is."""
    rule = settings.rule
    return Rise(q=rule.q, blocks=rule.chunk or rule.blocks)


def measurement_of(how: DiagnosisSettings, progress: Progress | None = None) -> Measurement:
    """The settings of a file as those of a measurement."""
    return Measurement(
        curvature=cast(Kind, how.curvature),
        budget=read(ProductBudget, how.budget, "budget"), seed=how.seed,
        dampings=how.dampings, progress=progress,
    )  # fmt: skip


def diagnose_session(
    point: ReachedPoint, shaped_like: Any, how: DiagnosisSettings, subject: str,
    progress: Progress | None = None,
) -> Diagnosis:  # fmt: skip
    """One point of one run, and what every rule would do from there."""
    measurement = measurement_of(how, progress)
    problem = SessionProblem.of(point, rise_of(shaped_like), how)
    operator, g, h = problem.in_steps(
        problem.operator(measurement.curvature, measurement.budget.columns, how.seed)
    )
    chosen = session_candidates(problem, measurement)
    found = diagnose_operator(
        operator, g, h, step=how.step or problem.rate, measurement=measurement, candidates=chosen,
        plain=session_step(problem, operator),
    )  # fmt: skip
    return replace(
        found, curvature=measurement.curvature, historical_loss=problem.kept.value(),
        incoming_loss=problem.new.value(), subject=subject,
        verdicts=(*found.verdicts, *_seen_by_memory(problem)),
    )  # fmt: skip


def _seen_by_memory(problem: SessionProblem) -> Iterator[str]:
    if problem.seen:
        yield (
            f"The run's own memory: {problem.seen} of the {problem.measured} historical examples "
            "are among those that it was made from, because the earlier tasks have too few others. "
            "On these its steps look better than they are; a smaller memory.examples or "
            "diagnosis.examples leaves others."
        )


def session_step(problem: SessionProblem, operator: Operator) -> Tensor | None:
    """The row's own plain step; None where all its optimizers are plain descent.

    Of a session with both kinds, the groups of plain descent follow their gradients.
    """
    optimizers = problem.training.optimizers
    owners = {
        problem.names[id(parameter)]: optimizers[group.name]
        for group in problem.training.session.groups
        for parameter in group.parameters.values()
        if group.name in optimizers
    }
    space, g = problem.space, problem.gradient
    adaptive = {name for name in space.names if name in owners and is_adaptive(owners[name])}
    if not adaptive:
        return None
    pieces = [
        adaptive_direction(owners[name], problem.parameters[name], piece)
        if name in adaptive else piece
        for name, piece in zip(space.names, space.tensors(g), strict=True)
    ]  # fmt: skip
    return operator.rated(uphill_never(g, space.flat(pieces)))


def session_candidates(problem: SessionProblem, how: Measurement) -> Candidates:
    """RISE and its controls, and informed steps where the session's layers can be remembered."""
    if not how.dampings:
        return Candidates(problem.shaper)
    if not how.positive:
        return Candidates(problem.shaper, note=NEGATIVE)
    try:
        memory = problem.memory(how.seed)
    except ValueError as error:  # no layer that a memory could hold
        return Candidates(problem.shaper, note=not_considered(str(error)))
    if memory is None:
        none = "there are no examples for a memory (diagnosis.memory)"
        return Candidates(problem.shaper, note=not_considered(none))
    module = problem.training.session.module
    return Candidates(problem.shaper, memory, (MemoryFold(memory),), how.dampings, module)
