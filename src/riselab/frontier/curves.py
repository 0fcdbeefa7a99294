"""From single runs to curves: what a method forgets as a function of what it learned.

A method is run at several settings (learning rates, and its one knob) and several seeds. Its curve
joins the settings that no other of its settings beats in both learning and forgetting, each at its
mean over seeds. Which settings those are is decided by the means, never seed by seed: taking the
luckiest setting of each seed would make every method look better than it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from riselab.common.intervals import Estimate, estimate

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Measures:
    """What learning and forgetting are in a kind of run, in words and units."""

    learned: str = "on new tasks"
    """behind a percentage"""
    verb: str = "forgets"
    unit: str = "points"
    factor: float = 1.0
    """from what a record has to ``unit``"""
    digits: int = 1

    def amount(self, forgotten: float) -> str:
        """Forgetting as text, without its unit."""
        return f"{forgotten * self.factor:.{self.digits}f}"


POINTS = Measures()
NATS = Measures("exact answers", "drifts", "nats per token", 0.01, 3)
"""Of chat runs: how far the answers to everything else have moved."""

KNOB = re.compile(r"(\w+)=([^\s,()]+)")
"""What a setting's name says of one thing that was swept."""


@dataclass(frozen=True)
class RunPoint:
    """One run, in points of accuracy."""

    method: str
    setting: str
    """What was swept, as text: ``lr=0.001`` or ``lr=0.001, damping=0.3``."""
    seed: int
    learned: float
    """New: the accuracy on each task when it had just been learned, on average."""
    forgotten: float
    """Fgt: the points lost on earlier tasks at the end."""
    final: float
    """The average at the end of the stream."""
    start: float | None = None
    """``learned`` of a model that was not trained at all (zero-shot, or chance), where known."""
    noise: float = 0.0
    """The standard error of ``learned`` that test sets of this size leave; 0 where not known."""

    @property
    def learned_something(self) -> bool | None:
        """Whether the gain is beyond the noise; None where the start is not known."""
        if self.start is None:
            return None
        return self.learned - self.start > ERRORS * self.noise


ERRORS = 2.0
"""A gain counts from this many standard errors of the test sets."""


@dataclass(frozen=True)
class SweepSetting:
    """The runs of one setting, by seed."""

    method: str
    name: str
    runs: Mapping[int, RunPoint]

    @cached_property
    def knobs(self) -> dict[str, str]:
        """What was swept, by name, as its name has them; empty where that says none."""
        return dict(KNOB.findall(self.name))

    @cached_property
    def place(self) -> tuple[tuple[float, str], ...]:
        """Where the setting stands in its sweep: numbers by size, words after them."""
        return tuple(_sorted_by(value) for value in self.knobs.values())

    @property
    def line(self) -> str:
        """The line of a chart that it is on: all that was swept but the last, which varies along
        the line."""
        return ", ".join(f"{name}={value}" for name, value in list(self.knobs.items())[:-1])

    @cached_property
    def learned(self) -> float:
        """What its runs learned, mean over seeds."""
        return fmean(run.learned for run in self.runs.values())

    @cached_property
    def forgotten(self) -> float:
        """What its runs forgot, mean over seeds."""
        return fmean(run.forgotten for run in self.runs.values())

    @cached_property
    def final(self) -> float:
        """What its runs know at the end, mean over seeds."""
        return fmean(run.final for run in self.runs.values())

    @cached_property
    def learned_something(self) -> bool:
        """Whether most seeds are above the untrained model by more than the noise of the test sets.

        Each is judged alone, so that more seeds can only confirm what one shows. Where no start is
        known, nothing can be said against it.
        """
        judged = [
            found for run in self.runs.values() if (found := run.learned_something) is not None
        ]
        return not judged or 2 * sum(judged) > len(judged)


@dataclass(frozen=True)
class Curve:
    """The settings of one method in the order of its sweep, or of several methods together."""

    name: str
    settings: tuple[SweepSetting, ...]

    @cached_property
    def front(self) -> tuple[SweepSetting, ...]:
        """Those that learned something and that no other one beats in both respects."""
        alive = [setting for setting in self.settings if setting.learned_something]
        kept: list[SweepSetting] = []
        for setting in sorted(alive, key=lambda s: (-s.learned, s.forgotten)):
            if not kept or setting.forgotten < kept[-1].forgotten:
                kept.append(setting)
        return tuple(reversed(kept))

    @property
    def dead(self) -> tuple[SweepSetting, ...]:
        """Those that learned nothing; they take part in no comparison."""
        return tuple(setting for setting in self.settings if not setting.learned_something)

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the most learning that the curve can be read at; None if it is empty."""
        return (self.front[0].learned, self.front[-1].learned) if self.front else None

    def forgotten_at(self, learned: float) -> dict[int, float]:
        """Per seed, the forgetting at this much learning."""
        return self.at(learned, lambda run: run.forgotten)

    def at(self, learned: float, value: Callable[[RunPoint], float]) -> dict[int, float]:
        """Per seed, ``value`` at this much learning, between two neighbouring settings.

        Linear between the two, then moved along their line to ``learned`` seed by seed. A seed's
        own point lies somewhat beside the level; the slope of the mean points takes it there.
        Without that, a seed that happened to learn more would count as one that forgot more.
        """
        low, high = self._neighbours(learned)
        ends = [fmean(map(value, setting.runs.values())) for setting in (low, high)]
        run = high.learned - low.learned
        slope = (ends[1] - ends[0]) / run if run else 0.0
        weight = (learned - low.learned) / run if run else 0.0
        found = {}
        for seed in sorted(low.runs.keys() & high.runs.keys()):
            here, there = low.runs[seed], high.runs[seed]
            at = _between(here.learned, there.learned, weight)
            found[seed] = _between(value(here), value(there), weight) + slope * (learned - at)
        return found

    def steepness(self, learned: float) -> float:
        """Points of forgetting for each point of learning, where the curve is read there."""
        low, high = self._neighbours(learned)
        run = high.learned - low.learned
        return abs(high.forgotten - low.forgotten) / run if run else 0.0

    def _neighbours(self, level: float) -> tuple[SweepSetting, SweepSetting]:
        places = [setting.learned for setting in self.front]
        if not places or not places[0] <= level <= places[-1]:
            ends = f"{places[0]:.4g} to {places[-1]:.4g}" if places else "nothing"
            raise ValueError(f"the curve of {self.name!r} covers {ends} (learned), got {level:.4g}")
        if len(places) == 1:
            return self.front[0], self.front[0]
        after = max(1, next(i for i, place in enumerate(places) if place >= level))
        return self.front[after - 1], self.front[after]


def _between(low: float, high: float, weight: float) -> float:
    return low + weight * (high - low)


def overlap(
    first: tuple[float, float] | None, second: tuple[float, float] | None
) -> tuple[float, float] | None:
    """What two ranges have in common; None for nothing, or where one is empty."""
    if first is None or second is None:
        return None
    low, high = max(first[0], second[0]), min(first[1], second[1])
    return (low, high) if low <= high else None


Readings = tuple[Estimate | None, Estimate | None, Estimate | None]


def side_by_side(mine: Mapping[int, float], theirs: Mapping[int, float]) -> Readings:
    """Two readings by seed: the interval of each, and of their difference, paired by seed."""
    paired = sorted(mine.keys() & theirs.keys())
    differences = [mine[seed] - theirs[seed] for seed in paired]
    return estimate(list(mine.values())), estimate(list(theirs.values())), estimate(differences)


def curves(points: Iterable[RunPoint]) -> dict[str, Curve]:
    """One curve per method, in the order in which methods first appear."""
    grouped: dict[str, dict[str, dict[int, RunPoint]]] = {}
    for point in points:
        runs = grouped.setdefault(point.method, {}).setdefault(point.setting, {})
        if point.seed in runs:
            raise ValueError(
                f"two runs of {point.method!r} at {point.setting!r} have the seed {point.seed}"
            )
        runs[point.seed] = point
    return {
        method: Curve(
            method, _in_order(SweepSetting(method, name, runs) for name, runs in by.items())
        )
        for method, by in grouped.items()
    }


def together(name: str, parts: Sequence[Curve]) -> Curve:
    """The best of several methods as one curve: whatever any of them reaches."""
    return Curve(name, tuple(setting for curve in parts for setting in curve.settings))


def _in_order(settings: Iterable[SweepSetting]) -> tuple[SweepSetting, ...]:
    """By what was swept. Not by what was learned: too large a rate learns less, and a line that
    went through the points by learning would jump between the smallest and the largest rates."""
    return tuple(sorted(settings, key=lambda setting: setting.place))


def _sorted_by(value: str) -> tuple[float, str]:
    try:
        return float(value), ""
    except ValueError:
        return float("inf"), value
