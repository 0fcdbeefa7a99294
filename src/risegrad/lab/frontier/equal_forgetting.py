"""The other readings of the same curves: learning at equal forgetting, the best end, the band."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from risegrad.common.intervals import Interval, interval
from risegrad.lab.frontier.frontier_curves import Curve, SweepSetting, overlap, side_by_side

STEPS = 8
"""Places of the band between two neighbouring settings."""


@dataclass(frozen=True)
class EqualForgetting:
    """A method beside the reference at one amount of forgetting: which of them learned more."""

    method: str
    reference: str
    level: float | None
    """The forgetting at which both were read; None where they have no range in common."""
    learned: Interval | None = None
    of_reference: Interval | None = None
    difference: Interval | None = None
    """Paired by seed; positive where the method learns more than the reference."""

    @property
    def verdict(self) -> Literal["more", "less", "open", "one seed", "no common range"]:
        """The difference in a word or three."""
        if self.difference is None:
            return "no common range"
        if self.difference.n == 1:
            return "one seed"
        if not self.difference.excludes_zero:
            return "open"
        return "more" if self.difference.mean > 0 else "less"


def compare_learning(
    method: Curve, reference: Curve, level: float | None = None
) -> EqualForgetting:
    """``method`` beside ``reference``, by default at the most forgetting that both reach."""
    common = overlap(_forgetting(method), _forgetting(reference))
    nothing = EqualForgetting(method.name, reference.name, None)
    if common is None:
        return nothing
    at = common[1] if level is None else level
    if not common[0] <= at <= common[1]:
        return nothing
    readings = side_by_side(method.learned_at(at), reference.learned_at(at))
    return EqualForgetting(method.name, reference.name, at, *readings)


def _forgetting(curve: Curve) -> tuple[float, float] | None:
    """The amounts of forgetting that a curve can be read at; along it they grow."""
    front = curve.front
    return (front[0].forgotten, front[-1].forgotten) if front else None


@dataclass(frozen=True)
class BestFinal:
    """A method at the setting with its highest final average, beside the reference at its own."""

    method: str
    setting: str
    final: Interval
    difference: Interval | None
    """Paired by seed; positive where the method ends higher. None for the reference itself."""


def best_final(method: Curve, reference: Curve) -> BestFinal | None:
    """None where no setting of one of them learned anything."""
    mine, theirs = _best(method), _best(reference)
    if mine is None or theirs is None:
        return None
    ours = {seed: run.final for seed, run in mine.runs.items()}
    paired = sorted(ours.keys() & theirs.runs.keys())
    found = interval(list(ours.values()))
    if found is None:
        return None
    less = [ours[seed] - theirs.runs[seed].final for seed in paired]
    return BestFinal(method.name, mine.name, found, None if mine is theirs else interval(less))


def _best(curve: Curve) -> SweepSetting | None:
    alive = [setting for setting in curve.settings if setting.learned_something]
    return max(alive, key=lambda setting: setting.final, default=None)


@dataclass(frozen=True)
class BandPlace:
    """The interval of a curve's forgetting at one amount of learning."""

    learned: float
    low: float
    high: float


def band(curve: Curve) -> tuple[BandPlace, ...]:
    """The interval over seeds along the curve; empty where it has one setting or one seed."""
    found = ((level, interval(list(curve.forgotten_at(level).values()))) for level in _along(curve))
    return tuple(
        BandPlace(level, one.low, one.high)
        for level, one in found
        if one and one.low is not None and one.high is not None
    )


def _along(curve: Curve) -> Iterator[float]:
    for low, high in pairwise(curve.front):
        gap = high.learned - low.learned
        yield from (low.learned + gap * step / STEPS for step in range(STEPS))
    if len(curve.front) > 1:
        yield curve.front[-1].learned
