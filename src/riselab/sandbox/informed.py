"""From blind to informed: one step and many, for rules that know a curvature.

An informed rule sees the gradient through ``P = (K + rho I)^(-1)``, ``K`` the curvature that it is
told: the true one, its top eigenpairs, or a wrong one. In the coordinates ``P^(-1/2) theta`` it is
the blind rule, so the exact recursions of the trajectory hold for it as they stand.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.theory import efficiency, metric_efficiency, ridge_metric
from risegrad.theory.conditions import dot, length, matvec, quadratic
from riselab.sandbox import trajectories
from riselab.sandbox.quadratics import random_rotation, symmetric
from riselab.sandbox.trajectories import EQUAL_PROGRESS, Path, RuleName, Subject, Tasks, follow

DAMPINGS = tuple(10 ** (power / 4) for power in range(-8, 9))  # in units of the average curvature
FRONTIER_DAMPING = 0.3
MOST_PAIRS = 8


@dataclass(frozen=True)
class Told:
    """A rule and the curvature that it knows; a blind rule knows none."""

    name: str
    rule: RuleName
    curvature: Tensor | None = None
    matched: bool = False
    """each step at the progress of a plain one, as ``match="progress"`` makes it"""

    def metric(self, d: int, damping: float) -> Tensor:
        """The ``P`` through which the rule sees the gradient."""
        if self.curvature is None:
            return torch.eye(d, dtype=torch.float64)
        return ridge_metric(self.curvature, damping)


@dataclass(frozen=True)
class InformedCurve:
    """One rule: one step over dampings, many steps over learning rates."""

    name: str
    damage: list[float]
    """one step's mean damage over FO's at equal mean progress, for each of ``DAMPINGS``"""
    forgetting: list[float]
    progress: list[float]
    at_progress: float | None
    """forgetting at ``EQUAL_PROGRESS``"""
    at_rate: tuple[float, float] | None = None
    """forgetting and progress at FO's rate for ``EQUAL_PROGRESS``, of the rules that it suits"""


@dataclass(frozen=True)
class InformedMeasurement:
    """What rules that know a curvature forget and learn, and the least that any could forget."""

    curves: list[InformedCurve]
    least: tuple[list[float], list[float]]
    """forgetting and progress"""


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
        Told("informed, wrong", "fo", symmetric(turn @ H @ turn.T)),
        Told("informed rise", "rise", H),
        Told("informed, matched", "fo", H, matched=True),
    ]


def top_pairs(H: Tensor, pairs: int) -> Tensor:
    """The largest eigenpairs of ``H`` and one number, their average, for all others."""
    values, vectors = torch.linalg.eigh(H)
    kept = values.clone()
    kept[:-pairs] = values[:-pairs].mean()
    return symmetric((vectors * kept) @ vectors.T)


def in_metric(tasks: Tasks, P: Tensor) -> Tasks:
    """The same tasks in the coordinates ``P^(-1/2) theta``: the same losses, another gradient.

    Plain descent there is ``theta <- theta - eta P g`` here, and RISE there is RISE in the metric.
    """
    values, vectors = torch.linalg.eigh(P)
    root = (vectors * values.sqrt()) @ vectors.T
    back = (vectors * values**-0.5) @ vectors.T
    return Tasks(symmetric(root @ tasks.A @ root), symmetric(root @ tasks.H @ root),
                 back @ tasks.shift)  # fmt: skip


def matched_path(tasks: Tasks, P: Tensor, steps: int, rates: Tensor) -> Path:
    """Descent along ``c P g``: of ``g``'s norm, then ``c`` times as long, at its progress."""

    def step(g: Tensor) -> Tensor:
        x = matvec(P, g)
        x = x * (length(g) / length(x))[:, None]
        # theory.progress_factor without its checks: of the sweep's rates, some diverge.
        return (dot(g, g) / dot(g, x)).clamp(1, 8)[:, None] * x

    forgetting, loss = trajectories.walk(tasks, step, rates, steps)
    nothing = torch.empty(0)
    return Path(rates, forgetting, loss, nothing, nothing)


def one_step_damage(tasks: Tasks, told: Told, q: int, damping: float) -> float:
    """Mean damage of the first step over FO's at equal mean progress."""
    g = tasks.gradient(torch.zeros_like(tasks.shift))
    P = told.metric(len(g), damping)
    noisy = told.rule == "rise"
    mine = metric_efficiency(tasks.H, P, g, q) if noisy else efficiency(tasks.H, g, P @ g)
    return float(efficiency(tasks.H, g, g) / mine)


def least_forgetting(tasks: Tasks) -> tuple[Tensor, Tensor]:
    """The least that any rule could forget in any number of steps, and its progress.

    The minimizers of ``f + c L`` over ``c``: ``theta = (A + cH)^+ A s``.
    """
    weights = torch.logspace(3, -3, 61, dtype=torch.float64)[:, None, None]
    inverse = torch.linalg.pinv(tasks.A + weights * tasks.H, hermitian=True)
    theta = inverse @ (tasks.A @ tasks.shift)
    progress = 1 - quadratic(tasks.A, theta - tasks.shift) / 2 / tasks.start_loss
    return quadratic(tasks.H, theta) / 2 / tasks.full_forgetting, progress


def measure_informed(tasks: Tasks, q: int, steps: int, seed: int) -> InformedMeasurement:
    """One step and many by every rule, and the least forgetting that is possible."""
    fo = follow(tasks, Subject("fo"), q, steps, trajectories.sweep_rates(tasks))
    rates, _, progress = trajectories.efficient_part(tasks, fo)
    rate = rates[progress >= EQUAL_PROGRESS][:1]  # none where FO does not learn as much
    curves = [_informed_curve(tasks, told, q, steps, rate) for told in rules_told(tasks, seed)]
    forgetting, progress = least_forgetting(tasks)
    return InformedMeasurement(curves, (forgetting.tolist(), progress.tolist()))


def _informed_curve(tasks: Tasks, told: Told, q: int, steps: int, rate: Tensor) -> InformedCurve:
    P = told.metric(len(tasks.shift), FRONTIER_DAMPING)
    seen = tasks if told.matched else in_metric(tasks, P)
    descend = (
        partial(matched_path, tasks, P, steps)
        if told.matched
        else partial(follow, seen, Subject(told.rule), q, steps)
    )
    _, forgetting, progress = trajectories.efficient_part(
        seen, descend(trajectories.sweep_rates(seen))
    )
    at_rate = None
    if len(rate) and (told.matched or told.name == "fo"):
        lost, gained = descend(rate).relative(tasks)
        at_rate = float(lost[-1]), float(gained[-1])
    damage = [one_step_damage(tasks, told, q, damping) for damping in DAMPINGS]
    at_progress = trajectories.forgetting_at_progress(seen, descend)
    return InformedCurve(
        told.name, damage, forgetting.tolist(), progress.tolist(), at_progress, at_rate
    )
