"""How well predictions and truth agree, curvature by curvature, and where the picture breaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from risegrad.foresight.local_updates import RANDOM, Outcome

GOOD = 0.25
"""Relative error of a prediction that still counts as the quadratic picture holding."""


@dataclass(frozen=True)
class Agreement:
    """One curvature over a set of updates."""

    curvature: str
    count: int
    rank_correlation: float | None
    """between predicted and true change (Spearman): scales of many orders do not drown it"""
    damage_correlation: float | None
    """the same for the second-order part: true change less its first-order term"""
    sign_agreement: float
    """part of the updates whose predicted change has the sign of the true one"""
    better_agreement: float | None
    """part of the RISE draws for which it was predicted rightly whether they beat FO"""
    relative_error: float
    """median of ``|predicted - true|/|true|``"""


def agreement(outcomes: Sequence[Outcome], curvature: str) -> Agreement:
    """All numbers of one curvature."""
    true = [o.true for o in outcomes]
    predicted = [o.predicted(curvature) for o in outcomes]
    errors = [relative_error(o, curvature) for o in outcomes]
    same = [
        math.copysign(1, a) == math.copysign(1, b) for a, b in zip(true, predicted, strict=True)
    ]
    return Agreement(
        curvature=curvature,
        count=len(outcomes),
        rank_correlation=rank_correlation(predicted, true),
        damage_correlation=rank_correlation(
            [o.damage[curvature] for o in outcomes], [o.true - o.linear for o in outcomes]
        ),
        sign_agreement=sum(same) / len(same),
        better_agreement=_better(outcomes, curvature),
        relative_error=median(errors),
    )


def relative_error(outcome: Outcome, curvature: str) -> float:
    """``|predicted / true - 1|``."""
    if outcome.true == 0:
        return 0.0 if outcome.predicted(curvature) == 0 else math.inf
    return abs(outcome.predicted(curvature) / outcome.true - 1)


def _better(outcomes: Sequence[Outcome], curvature: str) -> float | None:
    """RISE draws against the FO update of the same checkpoint, size and number of steps."""
    plain = {(o.checkpoint, o.step_size, o.steps): o for o in outcomes if o.rule == "FO"}
    rows = [(o, plain[o.checkpoint, o.step_size, o.steps]) for o in outcomes
            if o.rule == "RISE" and (o.checkpoint, o.step_size, o.steps) in plain]  # fmt: skip
    if not rows:
        return None
    right = [
        (o.true < fo.true) == (o.predicted(curvature) < fo.predicted(curvature)) for o, fo in rows
    ]
    return sum(right) / len(right)


def breaking_point(
    outcomes: Sequence[Outcome], curvature: str, steps: int, rule: str
) -> float | None:
    """The largest step size up to which a rule's median error stays below ``GOOD``; None if none.

    Rule by rule: at one step size FO goes much further than the rules that shrink the mean.
    """
    mine = [o for o in outcomes if (o.steps, o.rule) == (steps, rule)]
    last = None
    for size in sorted({o.step_size for o in mine}):
        if median(relative_error(o, curvature) for o in mine if o.step_size == size) > GOOD:
            break
        last = size
    return last


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's correlation; None where one side does not vary.

    >>> rank_correlation([1, 2, 3], [1, 8, 27])
    1.0
    """
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = x.norm() * y.norm()
    return None if len(a) < 3 or scale == 0 else round(float(x @ y / scale), 12)


def _ranks(values: Sequence[float]) -> torch.Tensor:
    """Ranks, equal values sharing the mean of theirs."""
    tensor = torch.tensor(values, dtype=torch.float64)
    below = (tensor[:, None] > tensor).sum(1).double()
    equal = (tensor[:, None] == tensor).sum(1).double()
    return below + (equal - 1) / 2


@dataclass(frozen=True)
class AgreementSpread:
    """Draws of a random rule at one step size beside the moments predicted for them."""

    rule: str
    step_size: float
    draws: int
    mean: float
    std: float


def spreads(outcomes: Sequence[Outcome]) -> list[AgreementSpread]:
    """One-step draws of the random rules, by step size."""
    found = []
    for rule in RANDOM:
        for size in sorted({o.step_size for o in outcomes}):
            true = [o.true for o in outcomes
                    if (o.rule, o.step_size, o.steps) == (rule, size, 1)]  # fmt: skip
            if len(true) > 1:
                values = torch.tensor(true, dtype=torch.float64)
                found.append(
                    AgreementSpread(
                        rule, size, len(true), values.mean().item(), values.std().item()
                    )
                )
    return found
