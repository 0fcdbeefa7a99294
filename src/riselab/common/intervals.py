"""Means, deviations and t intervals of a few numbers; no scipy at run time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with the sample standard deviation (divisor n - 1) of the ``n`` values behind it.

    Its confidence interval is ``mean ± t sd / sqrt(n)`` with Student's t at ``n - 1`` degrees of
    freedom: exact if the values are independent draws of a normal distribution.
    """

    mean: float
    sd: float | None
    """None where ``n`` is 1, or where nobody says it"""
    n: int

    @property
    def half(self) -> float | None:
        """Half the width of the interval; None where there is none."""
        if self.sd is None or self.n < 2:
            return None
        return t_quantile(CONFIDENCE, self.n - 1) * self.sd / math.sqrt(self.n)

    @property
    def low(self) -> float | None:
        """The lower end of the interval."""
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        """The upper end of the interval."""
        return None if self.half is None else self.mean + self.half

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval, and all of it is on one side of zero."""
        return self.half is not None and abs(self.mean) > self.half

    def times(self, factor: float) -> Estimate:
        """The same in another unit."""
        return Estimate(self.mean * factor, None if self.sd is None else self.sd * factor, self.n)


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Of the values that are there; None if none is.

    >>> estimate([1.0, 2.0, None, 3.0])
    Estimate(mean=2.0, sd=1.0, n=3)
    """
    given = [value for value in values if value is not None]
    if not given:
        return None
    mean = fmean(given)
    return Estimate(mean, _deviation(given, mean) if len(given) > 1 else None, len(given))


def _deviation(values: Sequence[float], mean: float) -> float:
    """Divisor n - 1. ``statistics.stdev`` calculates with fractions: twenty times as long."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def differ_from_zero(found: Sequence[Estimate | None]) -> list[bool]:
    """Which means are not zero, so that with 95 % certainty none is called so wrongly.

    Corrected for their number by Holm: of ``m``, the smallest p must be at most ``0.05 / m``, the
    next at most ``0.05 / (m - 1)``, and so on up to the first that is not.

    >>> differ_from_zero([estimate([0.9, 1.0, 1.3]), estimate([0.1, 0.2, 0.3])])
    [True, False]
    """
    values = [_p_value(one) for one in found]
    answers = [False] * len(values)
    left = sum(value is not None for value in values)
    for p, place in sorted((p, place) for place, p in enumerate(values) if p is not None):
        if p * left > 1 - CONFIDENCE:
            break
        answers[place], left = True, left - 1
    return answers


def _p_value(found: Estimate | None) -> float | None:
    """Of Student's t test that the mean is zero; None where nothing says how values scatter."""
    half = None if found is None else found.half
    if found is None or half is None:
        return None
    if half == 0:
        return 0.0 if found.mean else 1.0
    degrees = found.n - 1
    t = abs(found.mean) / half * t_quantile(CONFIDENCE, degrees)
    return 1 - _within(math.atan(t / math.sqrt(degrees)), degrees)


@cache
def t_quantile(confidence: float, degrees: int) -> float:
    """The ``t`` with ``P(|T| < t) = confidence`` for Student's T.

    With ``t = sqrt(degrees) tan(theta)`` the probability is a finite sum of powers of the cosine
    (Abramowitz and Stegun 26.7.3-4), and bisection over the bounded angle needs no first guess.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if degrees < 1:
        raise ValueError(f"degrees must be at least 1, got {degrees}")
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if _within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)


def _within(theta: float, degrees: int) -> float:
    """``P(|T| < sqrt(degrees) tan(theta))``."""
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= cosine * cosine * (k - 1) / k
    return 2 / math.pi * (theta + sine * total) if odd else sine * total
