"""Methods beside a reference where both learned as much, and all of them in one frontier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from risegrad.common.checks import check_choice
from risegrad.common.imports import need
from riselab.common.intervals import Estimate, differ_from_zero
from riselab.frontier.curves import (
    POINTS,
    Curve,
    Measures,
    RunPoint,
    SweepSetting,
    curves,
    overlap,
    side_by_side,
    together,
)
from riselab.pages.tables import in_html, text_table
from riselab.pages.text import MISSING

if TYPE_CHECKING:
    from pandas import DataFrame

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
