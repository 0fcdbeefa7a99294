"""The record of a sandbox run: one JSON with every number, the paper's beside ours."""

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from risegrad.sandbox.contraction_panels import OperatorMeasurement
from risegrad.sandbox.damage_panels import Deviation, GapMeasurement
from risegrad.sandbox.quadratic_frontier import Course, efficient_part
from risegrad.sandbox.sandbox_run import COMPARED_QUERIES, Results
from risegrad.sandbox.trajectories import Tasks

SCHEMA = 1

Json = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """One number of ours beside the paper's; ``expected`` is exact theory where it says one."""

    what: str
    ours: float
    spread: float | None
    """standard deviation of ours over repetitions, or its standard error"""
    paper: float | None
    expected: float | None
    same_settings: bool
    """whether d, q, samples and blocks are the paper's (its spectrum is not known)"""


def comparisons(results: Results) -> list[Comparison]:
    """What the paper reports of its sandbox, and the slope that it describes."""
    s = results.settings
    operator, gap = results.operator, results.gap
    same = (s.d, s.q, s.samples) == (64, 4, 24_000)
    ratio, error, exact = deviation_ratio(results.deviations, COMPARED_QUERIES)
    return [
        Comparison(
            f"relative eigenvalue error at {s.samples:,} samples",
            float(operator.eigenvalue_errors[0]),
            float(operator.eigenvalue_errors.std()),
            1.17e-2,
            None,
            same,
        ),
        Comparison("R^2 of the damage gap", gap.r_squared, None, 0.9999, 1.0, same),
        Comparison(
            f"blockwise / global deviation at q={COMPARED_QUERIES}",
            ratio,
            error,
            0.79,
            exact,
            (s.large_d, s.block) == (256, 16),
        ),
        Comparison(
            "slope of the operator residual",
            float(operator.slopes.mean()),
            float(operator.slopes.std()),
            None,
            -0.5,
            same,
        ),
    ]


def deviation_ratio(deviations: list[Deviation], q: int) -> tuple[float, float, float]:
    """Blockwise over global standard deviation at ``q``: measured, standard error, exact."""
    found = [d for d in deviations if d.q == q and d.sampler == "one-draw"]
    wide, narrow = found[0], found[-1]
    ratio = narrow.measured / wide.measured
    relative = [d.standard_error / d.measured for d in (wide, narrow)]
    return ratio, ratio * sum(r**2 for r in relative) ** 0.5, narrow.exact / wide.exact


def record(results: Results) -> Json:
    """Everything but the time it took: plain numbers, lists and texts, ready for JSON."""
    return {
        "kind": "risegrad.sandbox",
        "schema": SCHEMA,
        "versions": versions(),
        "settings": asdict(results.settings),
        "comparison": [asdict(row) for row in comparisons(results)],
        "closed_form_errors": results.closed_forms,
        "blockwise_ratio_by_gradient": results.ratio_by_gradient,
        "panels": {
            "operator": _operator(results.operator),
            "gap": _gap(results.gap),
            "deviation": [asdict(point) for point in results.deviations],
            "exposure": asdict(results.exposure),
            "sweep": [
                asdict(point) | {"ratio": point.ratio, "ratio_exact": point.ratio_exact}
                for point in results.sweep
            ],
            "rotated_operator": _operator(results.rotated_operator),
            "rotated_gap": _gap(results.rotated_gap),
            "rotated_deviation": [asdict(point) for point in results.rotated_deviations],
            "trajectory": [_course(results.tasks, course) for course in results.courses],
            "equal_progress": [
                asdict(row) | {"subject": row.subject.name} for row in results.equal_progress
            ],
            "informed": asdict(results.informed),
        },
        "speed": [asdict(point) | {"ratio": point.ratio} for point in results.speed],
    }


def versions() -> dict[str, str]:
    """What the numbers may depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("risegrad", "torch", "numpy", "matplotlib"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed as a distribution"
    return found


def _operator(m: OperatorMeasurement) -> Json:
    return {
        "eigenvalues": m.eigenvalues.tolist(),
        "predicted": m.predicted.tolist(),
        "measured": m.measured.tolist(),
        "relative_eigenvalue_errors": m.eigenvalue_errors.tolist(),
        "relative_errors_in_eigenbasis": m.eigenbasis_errors.tolist(),
        "sizes": m.sizes,
        "residuals": m.residuals.tolist(),
        "slopes": m.slopes.tolist(),
    }


def _gap(m: GapMeasurement) -> Json:
    return {
        "excess": m.excess.tolist(),
        "predicted": m.predicted.tolist(),
        "measured": m.measured.tolist(),
        "standard_error": m.standard_error.tolist(),
        "r_squared": m.r_squared,
        "worst_error_in_standard_errors": m.worst_error,
    }


def _course(tasks: Tasks, course: Course) -> Json:
    forgetting, progress = course.path.relative(tasks)
    rates, swept_forgetting, swept_progress = efficient_part(tasks, course.sweep)
    final = course.walks.forgetting[-1] / tasks.full_forgetting
    levels = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    return {
        "subject": course.subject.name,
        "rate": float(course.path.rates[0]),
        "forgetting": forgetting[:, 0].tolist(),
        "progress": progress[:, 0].tolist(),
        "simulated_forgetting": _mean_and_error(course.walks.forgetting / tasks.full_forgetting),
        "simulated_progress": _mean_and_error(1 - course.walks.loss / tasks.start_loss),
        "final_forgetting_quantiles": dict(
            zip(["5%", "50%", "95%"], final.quantile(levels).tolist(), strict=True)
        ),
        "frontier": {
            "rates": rates.tolist(),
            "forgetting": swept_forgetting.tolist(),
            "progress": swept_progress.tolist(),
        },
    }


def _mean_and_error(values: Tensor) -> Json:
    """Mean over runs and its standard error at the last step."""
    last = values[-1]
    return {"mean": float(last.mean()), "standard_error": float(last.std() / len(last) ** 0.5)}
