"""What the differences say, in words: for, against and undecided with the same weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from risegrad.common.intervals import CONFIDENCE
from risegrad.lab.report.experiment_tables import PERCENT
from risegrad.lab.report.paired_differences import (
    BETTER,
    IDLE,
    OPEN,
    TRADE,
    UNKNOWN,
    WORSE,
    Difference,
)
from risegrad.lab.report.report_text import interval_text
from risegrad.lab.report.result_rows import ReportedExperiment
from risegrad.pages.page_text import plural, signed

HEADINGS = {
    BETTER: f"Better than the baseline: the {PERCENT} interval excludes zero",
    WORSE: f"Worse than the baseline: the {PERCENT} interval excludes zero",
    OPEN: f"Not clearly different from the baseline: the {PERCENT} interval includes zero",
    TRADE: "Forgets less and learns less, or more of both: neither better nor worse",
    UNKNOWN: "No interval: fewer than two seeds in common",
    IDLE: "Not judged: a model in it learned nothing beyond the untrained one",
}
ALWAYS = (BETTER, WORSE, OPEN)
"""Verdicts that are named also where no row has them."""


@dataclass(frozen=True)
class Finding:
    """One heading and the sentences below it; an empty list is said as well."""

    verdict: str
    heading: str
    sentences: tuple[str, ...]


def findings(found: Sequence[Difference]) -> list[Finding]:
    """Every verdict, also one without a case; what is missing goes unsaid if nothing is."""
    result = []
    for verdict, heading in HEADINGS.items():
        sentences = tuple(_sentences([d for d in found if d.verdict == verdict]))
        if sentences or verdict in ALWAYS:
            result.append(Finding(verdict, heading, sentences))
    return result


def headline(found: Sequence[Difference]) -> str:
    """One sentence for the top of a page, by average accuracy.

    Forgetting is left out on purpose: without equal learning, whoever learns least wins it. That
    learning is not equal here is said first.
    """
    compared = [d for d in found if d.metric.key == "avg"]
    baselines = list(dict.fromkeys(d.baseline.label for d in compared))
    if not compared:
        return "No row is marked as the baseline: read the figure, where right and low is better."
    against = baselines[0] if len(baselines) == 1 else "the baseline of their section"
    counts = {verdict: sum(d.verdict == verdict for d in compared) for verdict in HEADINGS}
    parts = [f"{counts[v]} {words}" for v, words in _COUNTED.items() if counts[v]]
    return (
        "Single settings, not compared at equal learning. Average accuracy against "
        f"{against}: {', '.join(parts)}."
    )


_COUNTED = {
    BETTER: "better",
    WORSE: "worse",
    OPEN: "not clearly different",
    UNKNOWN: "with too few seeds to say",
    IDLE: "learned nothing",
}


def caveat(experiment: ReportedExperiment, found: Sequence[Difference]) -> str:
    """What the intervals do not say, and which rows have none."""
    if not any(row.baseline for row in experiment.rows):
        return "No row is marked as the baseline; --baseline LABEL chooses one."
    alone = [
        row.label
        for row in experiment.rows
        if not row.baseline and experiment.baseline_of(row) is None
    ]
    intervals = sum(d.verdict in (*ALWAYS, TRADE) for d in found)
    parts = [_chance(intervals)] if intervals else []
    if alone:
        parts.append(
            f"Not compared, because their section has no single baseline: {', '.join(alone)}. "
            "--baseline LABEL chooses one for all."
        )
    return " ".join(parts) or "There is no interval to judge by."


def _chance(comparisons: int) -> str:
    return (
        f"{plural(comparisons, 'comparison')}, each with its own interval and not corrected for "
        f"their number: if no row differed from its baseline, about "
        f"{comparisons * (1 - CONFIDENCE):.1g} of them would exclude zero by chance. An interval "
        "that includes zero does not show that two rows are equal."
    )


def _sentences(found: Sequence[Difference]) -> Iterator[str]:
    """One sentence per row: its label, each metric with difference and interval, the baseline."""
    for row in dict.fromkeys(d.row for d in found):
        own = [d for d in found if d.row is row]
        pairs = [d.interval.n if d.interval else 0 for d in own]
        seeds = plural(pairs[0], "seed") if len(set(pairs)) == 1 else f"{pairs} seeds"
        against = f"against {own[0].baseline.label}, {seeds} in common"
        yield f"{row.label}: {'; '.join(map(_words, own))} ({against})"


def _words(found: Difference) -> str:
    if found.interval is None:
        return found.metric.words
    change = f"{signed(found.interval.mean)} {interval_text(found.interval)}"
    return f"{found.metric.words} {change}"
