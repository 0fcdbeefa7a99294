"""An experiment diagnosed as it runs: the next session's first step, by every rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from torch import Tensor

from risegrad.core.optimizers import is_adaptive
from risegrad.curvature.diagnosis.candidates import NEGATIVE, not_considered
from risegrad.curvature.diagnosis.diagnose import diagnose_operator
from risegrad.curvature.diagnosis.inputs import (
    Measurement,
    Progress,
    adaptive_direction,
    uphill_never,
)
from risegrad.curvature.diagnosis.report import Diagnosis
from risegrad.curvature.diagnosis.rules import Candidates, MemoryFold
from risegrad.curvature.estimates import ProductBudget
from risegrad.curvature.products import Kind, Operator
from riselab.foresight.reached_point import ReachedPoint
from riselab.foresight.session import SessionProblem, rise_of
from riselab.foresight.settings import DiagnosisSettings


def measurement_of(how: DiagnosisSettings, progress: Progress | None = None) -> Measurement:
    """The settings of a file as those of a measurement."""
    return Measurement(
        curvature=cast(Kind, how.curvature), budget=ProductBudget.of(how.budget), seed=how.seed,
        dampings=how.dampings, progress=progress,
    )  # fmt: skip


def problem_at(
    point: ReachedPoint, shaped_like: Any, how: DiagnosisSettings, ahead: int = 0
) -> SessionProblem:
    """With the blocks of these settings' rule, ``ahead`` of the run's steps into the session."""
    return SessionProblem.of(point, rise_of(shaped_like), how, ahead)


def diagnose_session(
    point: ReachedPoint, shaped_like: Any, how: DiagnosisSettings, subject: str,
    progress: Progress | None = None,
) -> Diagnosis:  # fmt: skip
    """One point of one run, and what every rule would do from there."""
    measurement = measurement_of(how, progress)
    problem = problem_at(point, shaped_like, how)
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
