"""The one pass over the curvature: which products are taken, and when there are enough."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from risegrad.core.draws import mix
from risegrad.curvature.estimates.damage_moments import Calibration, evaluate
from risegrad.curvature.estimates.estimated import EstimateSource, Numbers, jackknife
from risegrad.curvature.estimates.gradient_terms import (
    GradientTerms,
    Tick,
    exact_gradient_terms,
    exposed,
    signed_gradient_terms,
)
from risegrad.curvature.estimates.probe_terms import Probes, exposure_scales, group_sizes
from risegrad.curvature.estimates.product_budget import LEAST_PROBES, ProductBudget
from risegrad.curvature.operators.products import Operator

TARGETS = ("damage.rise", "damage.rise_std")
"""The totals whose precision the budget speaks of; FO and scaled FO are exact."""

MOST_ASYMMETRY = 0.01
"""Relative: float32 leaves about 1e-4."""


@dataclass(frozen=True)
class Measured:
    """Values and standard errors by name, and what they were made of."""

    values: Numbers
    errors: Numbers
    gradient: EstimateSource[GradientTerms]
    probes: Probes

    @property
    def worst(self) -> float:
        """The largest relative error among the totals that the budget aims at."""
        ratios = [self.errors[name] / self.values[name].abs() for name in TARGETS]
        return max(float(ratio.nan_to_num(0.0, posinf=float("inf"))) for ratio in ratios)


def measure(
    operator: Operator, g: Tensor, h: Tensor, eta: float, budget: ProductBudget, seed: int,
    tick: Tick,
) -> Measured:  # fmt: skip
    """The gradient's products first; then probes, group by group, until the totals are good."""
    space = operator.space
    size = budget.group(space)
    if budget.exact(space):
        gradient: EstimateSource[Any] = exact_gradient_terms(operator, g, h, tick)
    else:
        gradient = signed_gradient_terms(operator, g, h, budget.signs, mix(seed, 1), tick)
    g2 = space.block_dots(g, g)
    probes = Probes(exposure_scales(space, g2), None if space.paired else g2 / exposed(space))
    formula = partial(evaluate, c=Calibration.of(space), eta=eta)
    for count in group_sizes(budget.probes, size):
        probes.add(operator, count, mix(seed, 2), tick)
        if probes.asymmetry > MOST_ASYMMETRY:
            raise FloatingPointError(
                f"curvature products are not symmetric: z'Hw and w'Hz differ by "
                f"{probes.asymmetry:.1%}; the loss is not deterministic, or an operation of the "
                "model has a wrong second derivative: try curvature='ggn', or float64"
            )
        values, errors = jackknife(formula, [gradient, probes])
        found = Measured(values, errors, gradient, probes)
        if probes.count >= LEAST_PROBES and found.worst <= budget.precision:
            break
    return found
