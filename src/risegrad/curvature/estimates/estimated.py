"""Numbers that were estimated: value, standard error, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

Terms = TypeVar("Terms", covariant=True)
Numbers = dict[str, Tensor]


@dataclass(frozen=True)
class Estimate:
    """``value`` with its standard error (0: exact) from ``products`` curvature products."""

    value: float
    error: float = 0.0
    products: int = 0

    @property
    def relative_error(self) -> float:
        """``error/|value|``; infinite where the value is zero and the error is not."""
        if self.error == 0:
            return 0.0
        return self.error / abs(self.value) if self.value else math.inf

    def __str__(self) -> str:
        return f"{self.value:.3g}" if self.error == 0 else f"{self.value:.3g} ± {self.error:.1g}"


class EstimateSource(Protocol, Generic[Terms]):
    """Something estimated from ``count`` independent draws; ``count`` 0 says that it is exact."""

    @property
    def count(self) -> int:
        """How many random draws there are so far; 0 if the terms are exact."""

    def terms(self) -> Terms:
        """The estimate from all draws."""

    def without(self, draw: int) -> Terms:
        """The same from all draws but one."""


def jackknife(
    evaluate: Callable[..., Numbers], sources: Sequence[EstimateSource[object]]
) -> tuple[Numbers, Numbers]:
    """Values and standard errors of everything that ``evaluate`` makes of the sources' terms.

    Leaving out one draw after the other shows how much each of them matters, however it enters:
    ``error^2 = ((n-1)/n) sum_k (value_(-k) - mean)^2``, added over independent sources. It needs no
    formula for the variance of a product or of a root, and is rather too large than too small.
    """
    points = [source.terms() for source in sources]
    values = evaluate(*points)
    squares = {name: torch.zeros_like(value) for name, value in values.items()}
    for position, source in enumerate(sources):
        if source.count < 2:
            continue
        # Two running sums instead of all replicates: memory does not grow with the draws.
        sums = {name: torch.zeros_like(value) for name, value in values.items()}
        seconds = {name: torch.zeros_like(value) for name, value in values.items()}
        for draw in range(source.count):
            changed = [*points]
            changed[position] = source.without(draw)
            for name, value in evaluate(*changed).items():
                moved = value - values[name]
                sums[name] += moved
                seconds[name] += moved.square()
        n = source.count
        for name in values:
            spread = (seconds[name] - sums[name].square() / n).clamp_min(0)
            squares[name] += (n - 1) / n * spread
    return values, {name: square.sqrt() for name, square in squares.items()}
