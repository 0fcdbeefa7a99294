"""What each rule would do, and how it compares with FO at equal progress."""

from __future__ import annotations

from dataclasses import dataclass

from risegrad.curvature.estimates.estimated import Estimate


@dataclass(frozen=True)
class RuleForecast:
    """One rule. ``share`` decides: damage per progress does not depend on the learning rate."""

    name: str
    share: Estimate
    """damage at equal first-order progress, in parts of FO's: ``1/Gamma``"""
    gain: Estimate
    """``Gamma``: FO's damage over this rule's at equal progress"""
    efficiency: Estimate
    """progress squared per damage, ``(g'x)^2/x'Hx``"""
    damage: Estimate
    """of one step at the learning rate of the diagnosis"""
    progress: float
    """first-order progress of that step, in parts of FO's"""
    foretold: float | None = None
    """``share`` as the memory that shapes the step sees it: far off is a picture not to trust"""
    products: int = 0
    """what it cost beyond what all rules share"""

    @property
    def rate(self) -> float:
        """What to multiply the learning rate by to keep FO's first-order progress."""
        return 1 / self.progress if self.progress else float("nan")
