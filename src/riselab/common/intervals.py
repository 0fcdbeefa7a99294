"""Means, deviations and t intervals of a few numbers; no scipy at run time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (divisor n - 1); no deviation where ``n`` is 1."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its confidence interval, which are None where ``n`` is 1."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def excludes_zero(self) -> bool:
        """Whether both ends are known and on one side of zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of the values that are there; None if none is.

    >>> spread([1.0, 2.0, None, 3.0])
    Spread(mean=2.0, sd=1.0, n=3)
    """
    given = [value for value in values if value is not None]
    if not given:
        return None
    mean = fmean(given)
    return Spread(mean, _deviation(given, mean) if len(given) > 1 else None, len(given))


def _deviation(values: Sequence[float], mean: float) -> float:
    """Divisor n - 1. ``statistics.stdev`` calculates with fractions: twenty times as long."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """``mean ± t sd / sqrt(n)`` with Student's t at ``n - 1`` degrees of freedom.

    Exact if the values are independent draws of a normal distribution.
    """
    found = spread(values)
    if found is None:
        return None
    if found.sd is None:
        return Interval(found.mean, None, None, found.n)
    half = t_quantile(confidence, found.n - 1) * found.sd / math.sqrt(found.n)
    return Interval(found.mean, found.mean - half, found.mean + half, found.n)


def differ_from_zero(found: Sequence[Interval | None]) -> list[bool]:
    """Which means are not zero, so that with 95 % certainty none is called so wrongly.

    Corrected for their number by Holm: of ``m``, the smallest p must be at most ``0.05 / m``, the
    next at most ``0.05 / (m - 1)``, and so on up to the first that is not.

    >>> differ_from_zero([interval([0.9, 1.0, 1.3]), interval([0.1, 0.2, 0.3])])
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


def _p_value(found: Interval | None) -> float | None:
    """Of Student's t test that the mean is zero; None where nothing says how values scatter."""
    if found is None or found.low is None or found.high is None:
        return None
    half = (found.high - found.low) / 2
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
