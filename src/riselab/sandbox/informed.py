"""From blind to informed: one step and many, for rules that are told a curvature to spare.

An informed rule sees the gradient through ``P = (K + rho I)^(-1)``, ``K`` the curvature that it is
told: the true one, its top eigenpairs, or a wrong one. In the coordinates ``P^(-1/2) theta`` it is
the blind rule, so the exact recursions of the trajectory hold for it as they stand.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.theory.conditions import quadratic
from risegrad.theory.informed import metric_efficiency, ridge_metric
from risegrad.theory.progress import efficiency
from riselab.sandbox.quadratics import random_rotation
from riselab.sandbox.trajectories import (
    RuleName,
    Subject,
    Tasks,
    efficient_part,
    follow,
    forgetting_at_progress,
    sweep_rates,
)

DAMPINGS = tuple(10 ** (power / 4) for power in range(-8, 9))  # in units of the average curvature
FRONTIER_DAMPING = 0.3
MOST_PAIRS = 8
TARGETS = (0.5, 0.8)
"""progress at which forgetting is compared"""


@dataclass(frozen=True)
class Told:
    """A rule and the curvature that it is told; a blind one is told none."""

    name: str
    rule: RuleName
    curvature: Tensor | None = None

    def metric(self, d: int, damping: float) -> Tensor:
        """The ``P`` through which the rule sees the gradient."""
        if self.curvature is None:
            return torch.eye(d, dtype=torch.float64)
        return ridge_metric(self.curvature, damping)


@dataclass(frozen=True)
class InformedCourse:
    """One rule: one step over dampings, many steps over learning rates."""

    name: str
    damage: list[float]
    """one step's mean damage over FO's at equal mean progress, for each of ``DAMPINGS``"""
    rates: list[float]
    progress: list[float]
    forgetting: list[float]
    at_progress: list[float | None]
    """forgetting at each of ``TARGETS``"""


@dataclass(frozen=True)
class LeastForgetting:
    """The lower edge of all that can be reached, by any rule in any number of steps."""

    progress: list[float]
    forgetting: list[float]
    at_progress: list[float]
    """forgetting at each of ``TARGETS``"""


@dataclass(frozen=True)
class InformedMeasurement:
    """What rules that know a curvature forget and learn."""

    dampings: tuple[float, ...]
    frontier_damping: float
    targets: tuple[float, ...]
    courses: list[InformedCourse]
    least: LeastForgetting


def rules_told(tasks: Tasks, seed: int) -> list[Told]:
    """FO, RISE, and what knowing the curvature makes of each; a wrong one has the same spectrum."""
    H = tasks.H
    pairs = max(1, min(MOST_PAIRS, len(H) // 4))
    turn = random_rotation(len(H), generator_for(seed, "wrong curvature"))
    return [
        Told("fo", "fo"),
        Told("rise", "rise"),
        Told("informed", "fo", H),
        Told(f"informed, top {pairs}", "fo", top_pairs(H, pairs)),
        Told("informed, wrong", "fo", _symmetric(turn @ H @ turn.T)),
        Told("informed rise", "rise", H),
    ]


def top_pairs(H: Tensor, pairs: int) -> Tensor:
    """The largest eigenpairs of ``H`` and one number, their average, for all others."""
    values, vectors = torch.linalg.eigh(H)
    kept = values.clone()
    kept[:-pairs] = values[:-pairs].mean()
    return _symmetric((vectors * kept) @ vectors.T)


def in_metric(tasks: Tasks, P: Tensor) -> Tasks:
    """The same tasks in the coordinates ``P^(-1/2) theta``: the same losses, another gradient.

    Plain descent there is ``theta <- theta - eta P g`` here, and RISE there is RISE in the metric.
    """
    values, vectors = torch.linalg.eigh(P)
    root = (vectors * values.sqrt()) @ vectors.T
    back = (vectors * values**-0.5) @ vectors.T
    return Tasks(_symmetric(root @ tasks.A @ root), _symmetric(root @ tasks.H @ root),
                 back @ tasks.shift)  # fmt: skip


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2


def one_step_damage(tasks: Tasks, told: Told, q: int, damping: float) -> float:
    """Mean damage of the first step over FO's at equal mean progress."""
    g = tasks.gradient(torch.zeros_like(tasks.shift))
    P = told.metric(len(g), damping)
    plain = efficiency(tasks.H, g, g)
    if told.rule == "rise":
        return float(plain / metric_efficiency(tasks.H, P, g, q))
    return float(plain / efficiency(tasks.H, g, P @ g))


def least_forgetting(tasks: Tasks) -> LeastForgetting:
    """The minimizers of ``f + c L`` over ``c``: ``theta = (A + cH)^+ A s``."""
    progress, forgetting = _trade_off(tasks, torch.logspace(3, -3, 61, dtype=torch.float64))
    at_progress = [_least_at(tasks, target) for target in TARGETS]
    return LeastForgetting(progress.tolist(), forgetting.tolist(), at_progress)


def _trade_off(tasks: Tasks, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Progress and forgetting of the minimizer for each weight ``c``."""
    inverse = torch.linalg.pinv(tasks.A + weights[:, None, None] * tasks.H, hermitian=True)
    theta = inverse @ (tasks.A @ tasks.shift)
    progress = 1 - quadratic(tasks.A, theta - tasks.shift) / 2 / tasks.start_loss
    return progress, quadratic(tasks.H, theta) / 2 / tasks.full_forgetting


def _least_at(tasks: Tasks, target: float) -> float:
    """Forgetting of the minimizer whose progress is ``target``, by bisection over ``log10 c``."""
    low, high = -6.0, 6.0  # progress falls as the weight of the old loss rises
    for _ in range(50):
        middle = (low + high) / 2
        progress, forgetting = _trade_off(tasks, torch.tensor([10**middle], dtype=torch.float64))
        low, high = (middle, high) if progress[0] > target else (low, middle)
    return float(forgetting[0])


def measure_informed(tasks: Tasks, q: int, steps: int, seed: int) -> InformedMeasurement:
    """One step and many by every rule, and the least forgetting that is possible."""
    courses = [_course(tasks, told, q, steps) for told in rules_told(tasks, seed)]
    return InformedMeasurement(
        DAMPINGS, FRONTIER_DAMPING, TARGETS, courses, least_forgetting(tasks)
    )


def _course(tasks: Tasks, told: Told, q: int, steps: int) -> InformedCourse:
    seen = in_metric(tasks, told.metric(len(tasks.shift), FRONTIER_DAMPING))
    sweep = follow(seen, told.rule, q, sweep_rates(seen), steps)
    rates, forgetting, progress = (part.tolist() for part in efficient_part(seen, sweep))
    subject = Subject(told.rule)
    return InformedCourse(
        told.name,
        [one_step_damage(tasks, told, q, damping) for damping in DAMPINGS],
        rates,
        progress,
        forgetting,
        [forgetting_at_progress(seen, subject, q, steps, target) for target in TARGETS],
    )
