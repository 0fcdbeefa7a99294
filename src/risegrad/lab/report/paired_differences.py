"""Paired differences to the baseline: the same seed in both, so that what a seed does cancels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from risegrad.common.intervals import Interval, interval
from risegrad.lab.report.metric_names import COMPARED, Metric
from risegrad.lab.report.result_rows import ReportedExperiment, ResultRow, metric_of

BETTER, WORSE, OPEN, UNKNOWN, IDLE = "better", "worse", "open", "unknown", "idle"
TRADE = "trade"
"""Forgets less and learns less, or more of both."""


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

    @property
    def verdict(self) -> str:
        """Whether the interval leaves zero out, and on which side.

        A model that learned nothing is neither better nor worse: it keeps what it never risked.
        """
        if self.row.idle or self.baseline.idle:
            return IDLE
        if self.interval is None or self.interval.low is None:
            return UNKNOWN
        if not self.interval.excludes_zero:
            return OPEN
        if not self.metric.alone and self._traded(self.interval):
            return TRADE
        return BETTER if self.interval.mean * self.metric.better > 0 else WORSE

    def _traded(self, forgotten: Interval) -> bool:
        """Whether learning clearly differs too, and the same way."""
        learned = self.learned
        if learned is None or not learned.excludes_zero:
            return False
        return forgotten.mean * learned.mean > 0


def difference(row: ResultRow, baseline: ResultRow, metric: Metric) -> Difference:
    """The difference over the seeds that both rows have."""
    learned = None if metric.alone else _paired(row, baseline, "plasticity")
    return Difference(row, baseline, metric, _paired(row, baseline, metric.key), learned)


def _paired(row: ResultRow, baseline: ResultRow, key: str) -> Interval | None:
    ours, theirs = row.by_seed(metric_of(key)), baseline.by_seed(metric_of(key))
    return interval([ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())])


def differences(experiment: ReportedExperiment) -> Iterator[Difference]:
    """Every row that has a baseline, in every compared metric that both have anywhere."""
    for row in experiment.rows:
        baseline = experiment.baseline_of(row)
        if baseline is None or baseline is row:
            continue
        for metric in COMPARED:
            if row.metric(metric.key) and baseline.metric(metric.key):
                yield difference(row, baseline, metric)
