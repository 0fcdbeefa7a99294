"""Scores beside the main one, such as answers restricted to the known labels."""

from __future__ import annotations

from collections.abc import Callable

from risegrad.lab.records import Record
from risegrad.lab.report.contents import column, measured
from risegrad.lab.report.metric_names import PAPER, Metric
from risegrad.lab.report.rows import Experiment
from risegrad.lab.report.tables import Line, Table, by_section, ranked


def score_names(experiment: Experiment) -> list[str]:
    """The main score first."""
    runs = experiment.runs()
    mains = dict.fromkeys(run.result.main_score for run in runs)
    return list(mains | dict.fromkeys(name for run in runs for name in run.result.scores))


def score_table(experiment: Experiment, score: str) -> Table:
    """Avg, Last and Fgt of another score, as the paper defines them for the record's domain."""
    lines = (
        (row.section, Line(row.label, tuple(measured(row.spread(_of(m, score))) for m in PAPER)))
        for row in experiment.rows
    )
    caption = f"{score} in {experiment.name}, in percent: mean ± standard deviation over seeds"
    return ranked(Table(caption, "Method", tuple(map(column, PAPER)), by_section(lines)))


def _of(metric: Metric, score: str) -> Callable[[Record], float | None]:
    def value(run: Record) -> float | None:
        # Imported late: it brings torch, and most reports have one score only.
        from risegrad.continual.metrics import summary_language, summary_vision

        found = run.result.scores.get(score)
        if found is None:
            return None
        try:
            if run.setting("domain") == "language":
                summary = summary_language(found.matrix)
            else:
                summary = summary_vision(found.matrix, found.union)
        except ValueError:  # entries that this metric needs were not measured
            return None
        number: float = getattr(summary, metric.key)
        return None if number != number else number  # NaN: undefined for a single task

    return value
