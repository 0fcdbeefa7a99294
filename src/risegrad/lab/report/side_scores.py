"""Scores beside the main one, such as answers restricted to the known labels."""

from __future__ import annotations

from collections.abc import Callable

from risegrad.lab.records.record import Record
from risegrad.lab.report.experiment_tables import column, measured
from risegrad.lab.report.metric_names import PAPER, Metric
from risegrad.lab.report.result_rows import ReportedExperiment, ResultRow
from risegrad.pages.page_tables import Column, Line, Table, TableCell, by_section, ranked


def score_names(experiment: ReportedExperiment) -> list[str]:
    """The main score first."""
    runs = experiment.runs()
    mains = dict.fromkeys(run.result.main_score for run in runs)
    return list(mains | dict.fromkeys(name for run in runs for name in run.result.scores))


def score_table(experiment: ReportedExperiment) -> Table | None:
    """All scores side by side, each also before the stream; None where there is one score only.

    Avg, Last and Fgt are those that the paper defines for the record's domain.
    """
    names = score_names(experiment)
    ahead = any(run.result.before for run in experiment.runs())
    if len(names) < 2 and not ahead:
        return None
    lines = (
        (row.section, Line(row.label, tuple(c for s in names for c in _cells(row, s, ahead))))
        for row in experiment.rows
    )
    columns = (column for score in names for column in _columns(score, ahead))
    caption = f"Scores of {experiment.name} in percent: mean ± standard deviation over seeds"
    notes = ("Zero-shot: mean over all tasks before the stream.",) if ahead else ()
    return ranked(Table(caption, "Method", tuple(columns), by_section(lines), notes))


def _columns(score: str, ahead: bool) -> list[Column]:
    zero = Column("Zero-shot", score, 0, "mean over all tasks before the stream")
    return [zero] * ahead + [column(metric, score) for metric in PAPER]


def _cells(row: ResultRow, score: str, ahead: bool) -> list[TableCell | None]:
    zero = measured(row.spread(lambda run: _mean_before(run, score)))
    found = [measured(row.spread(_of(metric, score)), idle=row.idle) for metric in PAPER]
    return [zero] * ahead + found


def _mean_before(run: Record, score: str) -> float | None:
    """The mean over tasks of what the model could do before it learned anything."""
    found = run.result.before.get(score, ())
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def _of(metric: Metric, score: str) -> Callable[[Record], float | None]:
    def value(run: Record) -> float | None:
        if score == run.result.main_score and metric.key in run.result.metrics:
            return run.result.metrics[metric.key]
        found = run.result.scores.get(score)
        if found is None:
            return None
        # Imported late: it brings torch, and most reports have one score only.
        from risegrad.continual.metrics import summary_language, summary_vision

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
