"""How many curvature products a diagnosis may spend, and on what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from risegrad.common.declared_fields import Checked, Count, Limits, PositiveInt, Probability
from risegrad.common.settings import read
from risegrad.curvature.operators.parameter_space import Space

LEAST_PROBES = 8
"""Fewer say little about their own error."""
MOST_GROUP = 16
"""Probes held at a time where memory allows more: pairs are formed within a group."""


ProbeCount = Annotated[int, Limits(at_least=LEAST_PROBES)]


@dataclass(frozen=True)
class ProductBudget(Checked):
    """Settings of cost; one product with the Hessian costs two to four gradients.

    >>> ProductBudget(probes=2)
    Traceback (most recent call last):
    ValueError: probes must be an integer >= 8, got 2
    """

    probes: ProbeCount = 64
    """products with random vectors, at most: they give traces and coupling norms of all blocks"""
    precision: Annotated[float, Probability()] = 0.1
    """probing ends when the totals' relative standard errors are at most this"""
    gradients: PositiveInt = 256
    """up to this many blocks one product each, all exact; more blocks share ``signs`` products"""
    signs: ProbeCount = 48
    """products with randomly signed block gradients where there are more blocks than that"""
    flat_scores: Count = 24
    """where blocks share products, those with the largest ``|S|`` that get one more for ``R``"""
    solves: Count = 0
    """blocks (those with the largest gradients) whose flat-signal score is solved for"""
    solve_products: PositiveInt = 12
    """products for each of them, at most"""
    adam_draws: Count = 4
    """draws for each of two ways to use RISE with Adam; 0 leaves them out"""
    eigenvalue: Count = 0
    """products for the largest eigenvalue of all blocks together; as many vectors are held"""
    columns: PositiveInt = 4
    """vectors multiplied together: they share the forward pass and cost memory each"""
    memory: PositiveInt = 1 << 30
    """bytes for the vectors that are held (the network's own activations come on top)"""

    @staticmethod
    def of(settings: Mapping[str, Any]) -> ProductBudget:
        """From a table of settings; a mistake is named with its key."""
        return read(ProductBudget, settings, "budget")

    def group(self, space: Space) -> int:
        """Probes that may be held together."""
        room = self.memory // (2 * space.d * space.dtype.itemsize)
        if room < 3:
            needed = 6 * space.d * space.dtype.itemsize
            raise ValueError(
                f"memory must hold at least six vectors of {space.d:,} numbers, {needed:,} bytes; "
                f"got {self.memory:,}"
            )
        return min(MOST_GROUP, room)

    def exact(self, space: Space) -> bool:
        """Whether every block's gradient gets its own product."""
        return len(space.blocks) <= self.gradients

    def gradient_products(self, space: Space) -> int:
        """How many products the terms of the gradient take."""
        return len(space.blocks) if self.exact(space) else self.signs + 2

    def most(self, space: Space) -> int:
        """Products that a diagnosis may need."""
        adam = 2 * self.adam_draws + 1 if self.adam_draws else 0
        solves = min(self.solves, len(space.blocks)) * self.solve_products
        flat = 0 if self.exact(space) else min(self.flat_scores, len(space.blocks))
        return self.gradient_products(space) + self.probes + flat + solves + adam + self.eigenvalue
