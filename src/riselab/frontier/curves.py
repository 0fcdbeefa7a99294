"""From single runs to curves: what a method forgets as a function of what it learned.

A method is run at several settings (learning rates, and its one knob) and several seeds. Its curve
joins the settings that no other of its settings beats in both learning and forgetting, each at its
mean over seeds. Which settings those are is decided by the means, never seed by seed: taking the
luckiest setting of each seed would make every method look better than it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from risegrad.common.checks import check_choice
from risegrad.common.imports import need
from riselab.common.intervals import Estimate, differ_from_zero, estimate
from riselab.pages.tables import in_html, text_table
from riselab.pages.text import MISSING

if TYPE_CHECKING:
    from pandas import DataFrame


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
            words = f"only from {places[0]:.4g} to {places[-1]:.4g}" if places else "no points"
            raise ValueError(f"the curve of {self.name!r} has {words} (learned), got {level:.4g}")
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


Verdict = Literal["less", "more", "open", "one seed", "no common range", "learned nothing"]


@dataclass(frozen=True)
class EqualLearning:
    """A method beside the reference at one amount of learning."""

    method: str
    reference: str
    level: float | None
    """The learning at which both were read; None where they have no range in common."""
    forgotten: Estimate | None = None
    of_reference: Estimate | None = None
    difference: Estimate | None = None
    """Paired by seed; negative where the method forgets less than the reference."""
    learned_nothing: bool = False
    clear: bool | None = None
    """Whether the difference is more than noise, corrected for the number of methods beside this
    one; None where it was compared alone, and its own interval says so."""

    @property
    def verdict(self) -> Verdict:
        """The difference in one or two words."""
        if self.learned_nothing:
            return "learned nothing"
        if self.difference is None:
            return "no common range"
        if self.difference.n == 1:
            return "one seed"  # however large: nothing says how much seeds scatter
        if not (self.difference.excludes_zero if self.clear is None else self.clear):
            return "open"
        return "less" if self.difference.mean < 0 else "more"


def compare(method: Curve, reference: Curve, level: float | None = None) -> EqualLearning:
    """``method`` beside ``reference``, by default at the most learning that both reach.

    Where a curve ends all but upright, the next setting below is taken: there a seed that learned
    a little more or less would count as one that forgot very much more or less.
    """
    if not method.front:
        return EqualLearning(method.name, reference.name, None, learned_nothing=True)
    common = common_range(method, reference)
    if common is None:
        return EqualLearning(method.name, reference.name, None)
    at = _most(method, reference, common) if level is None else level
    if not common[0] <= at <= common[1]:
        return EqualLearning(method.name, reference.name, None)
    readings = side_by_side(method.forgotten_at(at), reference.forgotten_at(at))
    return EqualLearning(method.name, reference.name, at, *readings)


UPRIGHT = 20.0
"""Points of forgetting for one point of learning."""


def _most(method: Curve, reference: Curve, common: tuple[float, float]) -> float:
    """The most learning in the common range at which neither curve is upright."""
    low, high = common
    settings = {s.learned for curve in (method, reference) for s in curve.front}
    levels = [high, *sorted((at for at in settings if low <= at < high), reverse=True)]
    curves = (method, reference)
    return next((at for at in levels if max(c.steepness(at) for c in curves) <= UPRIGHT), high)


def common_range(first: Curve, second: Curve) -> tuple[float, float] | None:
    """The amounts of learning that both curves can be read at."""
    return overlap(first.range, second.range)


FEW = 2
"""Seeds whose interval is so wide that hardly any difference excludes zero."""


class Frontier:
    """Forgetting against learning for several methods, over their sweeps and seeds.

    ``measures`` has the words and units of the sentence.

    >>> runs = [RunPoint("FO", f"lr={r}", s, 60 + 10 * r, 20 * r + s, 50) for r in (1, 2, 3)
    ...         for s in (0, 1, 2)]
    >>> runs += [RunPoint("informed", f"lr={r}", s, 60 + 10 * r, 5 * r + s, 60) for r in (1, 2, 3)
    ...          for s in (0, 1, 2)]
    >>> found = Frontier(runs, reference=["FO"])
    >>> print(found.sentence())
    At equal learning (90.0 % on new tasks), informed forgets 16.0 points, FO 61.0: 45.0 less, \
95 % interval 45.0 to 45.0; 3 seeds.
    """

    def __init__(
        self, runs: Iterable[RunPoint], reference: Sequence[str], measures: Measures = POINTS
    ) -> None:
        self.runs = tuple(runs)
        self.measures = measures
        self.curves = curves(self.runs)
        for name in reference:
            check_choice("reference", name, self.curves)
        self.references = tuple(reference)

    @cached_property
    def reference(self) -> Curve:
        """The best that the reference methods reach together."""
        parts = [self.curves[name] for name in self.references]
        return (
            parts[0]
            if len(parts) == 1
            else together(f"best of {' and '.join(self.references)}", parts)
        )

    def compare(self, method: str, level: float | None = None) -> EqualLearning:
        """One method beside the reference, by default at the most learning that both reach."""
        check_choice("method", method, self.curves)
        return compare(self.curves[method], self.reference, level)

    @cached_property
    def comparisons(self) -> tuple[EqualLearning, ...]:
        """Every method but the references, the one that forgets least of the reference first.

        Whether a difference is more than noise is corrected for their number (Holm).
        """
        return _judged(self.compare(name) for name in self.curves if name not in self.references)

    @cached_property
    def halfway(self) -> tuple[EqualLearning, ...]:
        """The same in the middle of the learning that a method and the reference have in common.

        At its end, where ``comparisons`` are made, plain training's curve is often steepest.
        """
        found = []
        for name in self.curves:
            common = common_range(self.curves[name], self.reference)
            if name not in self.references and common and common[0] < common[1]:
                found.append(self.compare(name, sum(common) / 2))
        return _judged(found)

    def best(self, learning: float | None = None) -> SweepSetting:
        """The setting with the least forgetting among those that learn at least ``learning``.

        Without a wanted amount: the setting with the highest final average.
        """
        alive = [s for curve in self.curves.values() for s in curve.settings if s.learned_something]
        if not alive:
            raise ValueError("no setting learned more than an untrained model")
        if learning is None:
            return max(alive, key=lambda setting: setting.final)
        enough = [setting for setting in alive if setting.learned >= learning]
        if not enough:
            most = max(setting.learned for setting in alive)
            raise ValueError(
                f"learning must be at most {most:.4g}, the most of any setting, got {learning}"
            )
        return min(enough, key=lambda setting: setting.forgotten)

    def sentence(self) -> str:
        """The finding with its interval; said plainly where there is none, and of few seeds what
        comes nearest to one."""
        clear = [found for found in self.comparisons if found.verdict == "less"]
        if clear:
            return self._finding(clear[0])
        if not self.comparisons:
            return "There is one method only, so nothing to compare."
        usual = self.reference.name
        unclear = {
            "open": (
                f"At equal learning no method {self.measures.verb} less than {usual} by more than "
                "noise."
            ),
            "one seed": "With one seed, a difference between methods may be noise.",
        }
        unclear["more"] = unclear["open"]
        for verdict in ("open", "more", "one seed"):
            for nearest in self.comparisons:
                if nearest.verdict == verdict:
                    few = nearest.difference is not None and nearest.difference.n <= FEW
                    return f"{unclear[verdict]} {self._finding(nearest) if few else ''}".strip()
        return f"No method can be compared with {usual}: no learning in common."

    def _finding(self, found: EqualLearning) -> str:
        mine, theirs, less = found.forgotten, found.of_reference, found.difference
        if found.level is None or mine is None or theirs is None or less is None:
            raise ValueError(f"{found.method!r} was not compared: {found.verdict}")
        words = self.measures
        word, sign = ("more", 1) if less.mean > 0 else ("less", -1)
        ends = sorted(sign * end for end in (less.low, less.high) if end is not None)
        between = " to ".join(map(words.amount, ends))
        sure = f", 95 % interval {between}; {less.n} seeds" if ends else ""
        return (
            f"At equal learning ({found.level:.1f} % {words.learned}), {found.method} "
            f"{words.verb} {words.amount(mine.mean)} {words.unit}, {found.reference} "
            f"{words.amount(theirs.mean)}: {words.amount(abs(less.mean))} {word}{sure}."
        )

    def _repr_html_(self) -> str:
        """For notebooks: the finding, and every method at equal learning."""
        rows = [[found.method, *self._cells(found), found.verdict] for found in self.comparisons]
        head = ["method", "New", "Fgt", f"Fgt of {self.reference.name}", "difference", "verdict"]
        return f"<p>{in_html(self.sentence())}</p>{text_table('', head, rows).notebook()}"

    def _cells(self, found: EqualLearning) -> Iterator[str]:
        yield MISSING if found.level is None else f"{found.level:.1f}"
        for part in (found.forgotten, found.of_reference, found.difference):
            yield MISSING if part is None else self.measures.amount(part.mean)

    def frame(self) -> DataFrame:
        """One row per method, setting and seed (pandas)."""
        from dataclasses import asdict

        pandas = need("pandas", "lab")
        found: DataFrame = pandas.DataFrame([asdict(run) for run in self.runs])
        return found


def _judged(compared: Iterable[EqualLearning]) -> tuple[EqualLearning, ...]:
    found = list(compared)
    clear = differ_from_zero([one.difference for one in found])
    judged = [replace(one, clear=more) for one, more in zip(found, clear, strict=True)]
    return tuple(sorted(judged, key=_rank))


def _rank(found: EqualLearning) -> tuple[int, float]:
    order = ("less", "open", "one seed", "more", "no common range", "learned nothing")
    rank = order.index(found.verdict)
    return rank, found.difference.mean if found.difference else 0.0
