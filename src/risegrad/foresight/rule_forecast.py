"""What each rule would do, and how it compares with the plain step at equal progress."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from risegrad.curvature.estimates.estimated import Estimate


@dataclass(frozen=True)
class RuleForecast:
    """One rule. ``share`` decides: damage per progress does not depend on the learning rate.

    It is compared with the optimizer's plain step: FO of plain descent, or Adam's own step.
    """

    name: str
    share: Estimate
    """damage at equal first-order progress, in parts of the plain step's: ``1/Gamma``"""
    gain: Estimate
    """``Gamma``: the plain step's damage over this rule's at equal progress"""
    efficiency: Estimate
    """progress squared per damage, ``(g'x)^2/x'Hx``"""
    damage: Estimate
    """of one step at the learning rate of the diagnosis"""
    progress: float
    """first-order progress of that step, in parts of the plain one's"""
    foretold: float | None = None
    """``share`` as the memory that shapes the step sees it: far off is a picture not to trust"""
    products: int = 0
    """what it cost beyond what all rules share"""
    on: str = "gradient"
    """where it acts: on the gradient, or on the update that the optimizer makes of it"""

    linear: float | None = None
    """first-order change of the historical loss, ``-eta h'x``, at the plain step's progress; None
    in older files"""
    change: Estimate | None = None
    """with the damage at that progress: the whole change of the historical loss"""
    damping: float | None = None
    """of informed steps; None in older files"""

    def changing(self, linear: Estimate, plain: float) -> RuleForecast:
        """With the change of the loss at equal progress, where the plain step's damage is known."""
        error = math.hypot(linear.error, self.share.error * plain)
        change = Estimate(linear.value + self.share.value * plain, error, self.share.products)
        return replace(self, linear=linear.value, change=change)

    @property
    def rate(self) -> float:
        """What to multiply the learning rate by to keep the plain step's first-order progress."""
        return 1 / self.progress if self.progress else float("nan")
