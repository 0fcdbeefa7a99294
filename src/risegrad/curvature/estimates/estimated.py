"""Numbers that were estimated: value, standard error, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.curvature.estimates.terms import Probes, ProbeTerms

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
        return with_error(self.value, self.error)


PLAIN = (1e-3, 1e5)
"""Sizes that are written without an exponent."""
NEGLIGIBLE = 1e-6
"""Relative: what rounding leaves is no error."""


def in_digits(value: float, digits: int = 3) -> str:
    """So many digits that count, without an exponent where a reader needs none.

    >>> in_digits(304.2, 2), in_digits(0.00123456), in_digits(2.5e-7)
    ('300', '0.00123', '2.5e-07')
    """
    rounded = float(f"{value:.{digits}g}")
    if PLAIN[0] <= abs(rounded) < PLAIN[1]:
        return f"{rounded:.12f}".rstrip("0").rstrip(".")
    return f"{value:.{digits}g}"


def with_error(value: float, error: float, digits: int = 3) -> str:
    """The error's first digit says how many decimals of the value mean something.

    >>> with_error(1.04, 0.003), with_error(304.0, 1234.0), with_error(2.113e-5, 2e-6)
    ('1.040 ± 0.003', '304 ± 1000', '2.1e-05 ± 2e-06')
    """
    if not (math.isfinite(value) and math.isfinite(error)):
        return f"{value:.{digits}g} ± {error:.1g}"
    if error <= NEGLIGIBLE * abs(value):
        return in_digits(value, digits)
    first = float(f"{error:.1g}")
    place = math.floor(math.log10(first) + 1e-9)
    size = max(abs(value), first)
    if PLAIN[0] <= size < PLAIN[1]:
        decimals = max(0, -place)
        return f"{value:.{decimals}f} ± {first:.{decimals}f}"
    least = math.floor(math.log10(abs(value))) if value else place
    return f"{value:.{max(0, least - place)}e} ± {first:.0e}"


def jackknife(evaluate: Callable[[ProbeTerms], Numbers], probes: Probes) -> tuple[Numbers, Numbers]:
    """Values and standard errors of everything that ``evaluate`` makes of the probes' terms.

    Leaving out one probe after the other shows how much each of them matters, however it enters:
    ``error^2 = ((n-1)/n) sum_k (value_(-k) - mean)^2``. It needs no formula for the variance of a
    product or of a root, and is rather too large than too small.
    """
    values, n = evaluate(probes.terms()), probes.count
    # Two running sums instead of all replicates: memory does not grow with the draws.
    sums = {name: torch.zeros_like(value) for name, value in values.items()}
    squares = {name: torch.zeros_like(value) for name, value in values.items()}
    for draw in range(n):
        for name, value in evaluate(probes.without(draw)).items():
            moved = value - values[name]
            sums[name] += moved
            squares[name] += moved.square()
    return values, {
        name: ((n - 1) / n * (squares[name] - sums[name].square() / n).clamp_min(0)).sqrt()
        for name in values
    }
