"""From numbers to places on the screen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] to [start, end]; logarithmic in base 2 if asked."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = math.log2(low), math.log2(high), math.log2(value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def linear(values: Iterable[float], start: float, end: float, *, most: int = 6) -> Scale:
    """Around the values, with ends on round ticks."""
    given = list(values)
    low, high = min(given), max(given)
    if high - low < 1e-9:
        low, high = low - 1, high + 1
    step = _round_step((high - low) / (most - 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(k * step, 10) for k in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], start, end, ticks)


def powers(values: Iterable[float], start: float, end: float) -> Scale:
    """For counts like 1, 4, 16: base-2 logarithms, a tick at each value."""
    ticks = tuple(sorted(set(values)))
    low, high = ticks[0], ticks[-1]
    return Scale(low / 1.2, high * 1.2, start, end, ticks, logarithmic=True)


def steps(count: int, start: float, end: float, *, most: int = 10) -> Scale:
    """For sessions 1..count, with a little room on both sides."""
    every = max(1, math.ceil(count / most))
    ticks = tuple(float(k) for k in range(1, count + 1) if (k - 1) % every == 0)
    return Scale(0.7, count + 0.3, start, end, ticks)


def _round_step(raw: float) -> float:
    """The next of 1, 2, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
