"""An experiment diagnosed as it runs: the next session's first steps, by every rule and row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from risegrad.curvature.estimates.product_budget import ProductBudget
from risegrad.curvature.operators.products import Kind
from risegrad.foresight.diagnosis import diagnose_operator
from risegrad.foresight.diagnosis_options import Measurement, Progress
from risegrad.foresight.diagnosis_report import Diagnosis
from risegrad.foresight.foresight_settings import DiagnosisSettings
from risegrad.foresight.reached_point import ReachedPoint
from risegrad.foresight.row_steps import ExperimentRow, row_forecasts, steps_of_rows
from risegrad.foresight.session_problem import SessionProblem, rise_of
from risegrad.foresight.step_rules import Candidates, MemoryFold


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
    progress: Progress | None = None,
) -> Diagnosis:  # fmt: skip
    """One point of one run, and what every row's rule would do from there."""
    measurement = measurement_of(how, progress)
    steps = steps_of_rows(point, problem_at(point, rows, how).space, rows, how.draws, how.seed)
    problem = problem_at(point, rows, how)
    plain = problem.operator(measurement.curvature, measurement.budget.columns, how.seed)
    operator, g, h = problem.in_steps(plain)
    chosen = session_candidates(problem, measurement)
    found = diagnose_operator(
        operator, g, h, step=how.step or problem.rate, measurement=measurement, candidates=chosen
    )
    losses = problem.kept.value(), problem.new.value()
    as_run = row_forecasts(plain, problem.gradient, steps)
    return replace(
        found, curvature=measurement.curvature, historical_loss=losses[0], incoming_loss=losses[1],
        rows=as_run, subject=subject, products=found.products + sum(r.products for r in as_run),
    )  # fmt: skip


def session_candidates(problem: SessionProblem, how: Measurement) -> Candidates:
    """RISE and its controls, and informed steps where the session's layers can be remembered."""
    if not how.dampings or not how.positive:
        return Candidates(problem.shaper)
    try:
        memory = problem.memory(how.seed)
    except ValueError as error:  # no layer that a memory could hold
        return Candidates(problem.shaper, note=f"Informed steps were not considered: {error}.")
    if memory is None:
        return Candidates(problem.shaper)
    module = problem.training.session.module
    return Candidates(problem.shaper, memory, (MemoryFold(memory),), how.dampings, module)
