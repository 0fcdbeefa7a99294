"""An experiment diagnosed as it runs: the next session's first steps, by every rule and row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from torch import Tensor

from risegrad.core.torch_optimizers import is_adaptive
from risegrad.curvature.estimates.product_budget import ProductBudget
from risegrad.curvature.operators.products import Kind, Operator
from risegrad.foresight.diagnosis import diagnose_operator
from risegrad.foresight.diagnosis_options import Measurement, Progress
from risegrad.foresight.diagnosis_report import Diagnosis
from risegrad.foresight.foresight_settings import DiagnosisSettings
from risegrad.foresight.memory_folds import NEGATIVE, not_considered
from risegrad.foresight.optimizer_steps import adaptive_direction, uphill_never
from risegrad.foresight.reached_point import ReachedPoint
from risegrad.foresight.row_steps import ExperimentRow, row_forecasts, steps_of_rows
from risegrad.foresight.session_problem import SessionProblem, rise_of
from risegrad.foresight.step_rules import Candidates, MemoryFold

ENDED = "it has no step left in this session"


def measurement_of(how: DiagnosisSettings, progress: Progress | None = None) -> Measurement:
    """The settings of a file as those of a measurement."""
    return Measurement(
        curvature=cast(Kind, how.curvature), budget=ProductBudget.of(how.budget), seed=how.seed,
        dampings=how.dampings, progress=progress,
    )  # fmt: skip


def problem_at(
    point: ReachedPoint, rows: Sequence[ExperimentRow], how: DiagnosisSettings, ahead: int = 0
) -> SessionProblem:
    """With the blocks of the point's own row, or of the first that shapes, if it does not.

    ``ahead``: so many steps of the run's own into the session.
    """
    shaping = [row for row in rows if row.settings.rule.name not in ("", "fo", "zo")]
    own = point.settings.rule.name not in ("", "fo", "zo")
    chosen = point.settings if own or not shaping else shaping[0].settings
    return SessionProblem.of(point, rise_of(chosen), how, ahead)


def diagnose_session(
    point: ReachedPoint, rows: Sequence[ExperimentRow], how: DiagnosisSettings, subject: str,
    progress: Progress | None = None, left_out: Sequence[str] = (),
) -> Diagnosis:  # fmt: skip
    """One point of one run, and what every row's rule would do from there.

    ``left_out`` names rows that could not go on from this point, each with the reason.
    """
    measurement = measurement_of(how, progress)
    ended = [row for row in rows if point.training(row.settings).session.epochs <= point.epoch]
    rows = [row for row in rows if row not in ended]
    steps = steps_of_rows(point, problem_at(point, rows, how).space, rows, how.draws, how.seed)
    problem = problem_at(point, rows, how)
    plain = problem.operator(measurement.curvature, measurement.budget.columns, how.seed)
    operator, g, h = problem.in_steps(plain)
    chosen = session_candidates(problem, measurement)
    found = diagnose_operator(
        operator, g, h, step=how.step or problem.rate, measurement=measurement, candidates=chosen,
        plain=session_step(problem, operator),
    )  # fmt: skip
    losses = problem.kept.value(), problem.new.value()
    as_run = row_forecasts(plain, problem.gradient, problem.past_gradient, steps)
    return replace(
        found, curvature=measurement.curvature, historical_loss=losses[0], incoming_loss=losses[1],
        rows=as_run, subject=subject, products=found.products + sum(r.products for r in as_run),
        verdicts=(*found.verdicts, *_seen_by_memory(problem)),
        left_out=(*left_out, *(f"{row.label} ({ENDED})" for row in ended)),
    )  # fmt: skip


def _seen_by_memory(problem: SessionProblem) -> Iterator[str]:
    if problem.seen:
        yield (
            f"Rows with a memory: {problem.seen} of the {problem.measured} historical examples are "
            "among those that the run's own memory was made from, because the earlier tasks have "
            "too few others. On these an informed row looks better than it is; a smaller "
            "memory.examples or diagnosis.examples leaves others."
        )


def session_step(problem: SessionProblem, operator: Operator) -> Tensor | None:
    """The row's own plain step; None where all its optimizers are plain descent.

    With the moments that the run has at this point. Of a session with both kinds, the groups of
    plain descent follow their gradients.
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
