"""Paired differences to the baseline: the same seed in both, so that what a seed does cancels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from riselab.common.intervals import Interval, differ_from_zero, interval
from riselab.pages.tables import Line, Table, by_section, difference_cell
from riselab.pages.text import plural
from riselab.report.rows import ReportedExperiment, ResultRow, metric_of
from riselab.report.tables import COMPARED, IDLE, PERCENT, Metric

BETTER, WORSE, OPEN, UNKNOWN, NOTHING = "better", "worse", "open", "unknown", "idle"
TRADE = "trade"
"""Forgets less and learns less, or more of both."""
COUNTED = {
    BETTER: "better",
    WORSE: "worse",
    OPEN: "not clearly different",
    UNKNOWN: "with too few seeds to say",
    NOTHING: "learned nothing",
}
NOTES = (
    "Better or worse: zero is outside the interval also after correction for the number of rows "
    "(Holm, metric by metric); open: it is not, which does not show that two rows are equal. The "
    "intervals are not corrected. Without a word: fewer than two seeds in common, a row that "
    "learned nothing, or one that forgets less and learns less.",
)


@dataclass(frozen=True)
class Difference:
    """What a row gains on its baseline in one metric, with an interval."""

    row: ResultRow
    baseline: ResultRow
    metric: Metric
    interval: Interval | None
    """row minus baseline, in points; None if no seed is in both"""
    learned: Interval | None = None
    """the difference in new-task accuracy, without which one in forgetting says nothing"""
    clear: bool = False
    """whether it is not zero, corrected for the number of rows"""

    @property
    def judged(self) -> bool:
        """Not where a model learned nothing: it keeps what it never risked."""
        return not (self.row.idle or self.baseline.idle)

    @property
    def verdict(self) -> str:
        """Whether it is clear, and on which side of zero."""
        if not self.judged:
            return NOTHING
        if self.interval is None or self.interval.low is None:
            return UNKNOWN
        if not self.clear:
            return OPEN
        if not self.metric.alone and self._traded(self.interval):
            return TRADE
        return BETTER if self.interval.mean * self.metric.better > 0 else WORSE

    def _traded(self, forgotten: Interval) -> bool:
        """Whether learning differs too, and the same way."""
        learned = self.learned
        return learned is not None and learned.excludes_zero and forgotten.mean * learned.mean > 0


def differences(experiment: ReportedExperiment) -> Iterator[Difference]:
    """Every row that has a baseline, in every compared metric that both have anywhere."""
    pairs = [(row, experiment.baseline_of(row)) for row in experiment.rows]
    for metric in COMPARED:
        found = [
            _difference(row, baseline, metric)
            for row, baseline in pairs
            if baseline and baseline is not row
            if row.metric(metric.key) and baseline.metric(metric.key)
        ]
        clear = differ_from_zero([one.interval if one.judged else None for one in found])
        yield from (replace(one, clear=c) for one, c in zip(found, clear, strict=True))


def _difference(row: ResultRow, baseline: ResultRow, metric: Metric) -> Difference:
    learned = None if metric.alone else _paired(row, baseline, "plasticity")
    return Difference(row, baseline, metric, _paired(row, baseline, metric.key), learned)


def _paired(row: ResultRow, baseline: ResultRow, key: str) -> Interval | None:
    ours, theirs = row.by_seed(metric_of(key)), baseline.by_seed(metric_of(key))
    return interval([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])


def difference_table(experiment: ReportedExperiment, found: Sequence[Difference]) -> Table | None:
    """One line per compared row: mean difference and interval in each metric."""
    if not found:
        return None
    shown = [m for m in COMPARED if any(d.metric is m for d in found)]
    lines = []
    for row in dict.fromkeys(d.row for d in found):
        own = {d.metric: d for d in found if d.row is row}
        baseline = next(iter(own.values())).baseline
        cells = (
            difference_cell(own[m].interval, own[m].verdict) if m in own else None for m in shown
        )
        lines.append((f"against {baseline.label}", Line(row.label, tuple(cells), IDLE * row.idle)))
    return Table(
        f"Paired differences in {experiment.name}, in points: row minus baseline at the same seed, "
        f"with {PERCENT} t intervals",
        "Method",
        tuple(m.column() for m in shown),
        by_section(lines),
        NOTES,
    )


def headline(found: Sequence[Difference]) -> str:
    """One sentence for the top of a page, by average accuracy.

    Forgetting is left out on purpose: without equal learning, whoever learns least wins it. That
    learning is not equal here is said first.
    """
    compared = [d for d in found if d.metric.key == "avg"]
    baselines = list(dict.fromkeys(d.baseline.label for d in compared))
    if not compared:
        return "No row is marked as the baseline; --baseline LABEL chooses one."
    against = baselines[0] if len(baselines) == 1 else "the baseline of their section"
    counts = {verdict: sum(d.verdict == verdict for d in compared) for verdict in COUNTED}
    parts = [f"{counts[v]} {words}" for v, words in COUNTED.items() if counts[v]]
    return (
        "Single settings, not compared at equal learning. Average accuracy against "
        f"{against}: {', '.join(parts)}."
    )


def left_out(experiment: ReportedExperiment) -> str:
    """Which rows are not compared although others are; empty where all are."""
    if not any(row.baseline for row in experiment.rows):
        return ""
    alone = [r.label for r in experiment.rows if not r.baseline and not experiment.baseline_of(r)]
    if not alone:
        return ""
    return (
        f"Not compared, because the section of {plural(len(alone), 'row')} has no single baseline: "
        f"{', '.join(alone)}. --baseline LABEL chooses one for all."
    )
