"""The tables of one experiment: results, differences, costs, numbers of queries, other scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from risegrad.common.intervals import CONFIDENCE, Spread, interval
from risegrad.lab.records.record import Record
from risegrad.lab.report.metric_names import COMPARED, KNOWN, PAPER, Metric, metric
from risegrad.lab.report.paired_differences import Difference
from risegrad.lab.report.paper_tables import METRICS, PaperFigure
from risegrad.lab.report.report_text import interval_text, mean_text, spread_text
from risegrad.lab.report.result_rows import ReportedExperiment, ResultRow
from risegrad.pages.page_tables import Column, Line, Section, Table, TableCell, by_section, ranked
from risegrad.pages.page_text import number, plural, signed

PERCENT = f"{CONFIDENCE:.0%}"
IDLE = "learned nothing"
"""Said beside a row whose model is no better than one that was not trained."""


def measured(
    found: Spread | None, paper: PaperFigure | None = None, *, idle: bool = False
) -> TableCell | None:
    """Mean, deviation, and the paper's figure; None if there is neither.

    What an ``idle`` row keeps is never the best of a column.
    """
    if found is None and paper is None:
        return None
    sd = "" if found is None or found.sd is None else f"± {number(found.sd)}"
    beside = "" if paper is None else spread_text(paper)
    order = None if found is None else found.mean
    return TableCell(mean_text(found), sd, beside, order, compared=not idle)


def column(of: Metric, group: str = "") -> Column:
    """A table's column for a metric; forgetting alone has no best."""
    return Column(of.title, group, of.better, of.words, of.alone)


def results(experiment: ReportedExperiment) -> Table:
    """Every row with the metrics that the project knows, the paper's figures where there are."""
    shown = [m for m in KNOWN if any(row.metric(m.key) for row in experiment.rows)]
    lines = (
        (
            row.section,
            _result(row, shown),
        )
        for row in experiment.rows
    )
    return ranked(
        Table(
            f"Results of {experiment.name} in percent: mean ± standard deviation over seeds",
            "Method",
            (*map(column, shown), Column("Seeds", explanation="number of runs")),
            by_section(lines),
            tuple(_apart(experiment)),
        )
    )


def _result(row: ResultRow, shown: Sequence[Metric]) -> Line:
    """Who learned nothing keeps everything: said beside the row, and never best of a column."""
    note = ", ".join(["baseline"] * row.baseline + [IDLE] * row.idle)
    return Line(row.label, (*_metrics(row, shown), _seeds(row)), note)


def _apart(experiment: ReportedExperiment) -> Iterator[str]:
    """Why some rows have no figure of the paper beside them, although they name one."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in experiment.rows:
        if row.apart:
            found.setdefault(row.apart, []).append(row.label)
    for apart, labels in found.items():
        yield f"Not in the paper's setting ({', '.join(apart)}): {', '.join(labels)}."


def _metrics(row: ResultRow, shown: Sequence[Metric]) -> list[TableCell | None]:
    paper = dict(zip(METRICS, row.figures, strict=True)) if row.figures else {}
    return [measured(row.metric(m.key), paper.get(m.key), idle=row.idle) for m in shown]


def _seeds(row: ResultRow) -> TableCell:
    return TableCell(str(len(row.runs)), order=len(row.runs))


def other_metrics(experiment: ReportedExperiment) -> Table | None:
    """Metrics that records have beyond the known ones; the report knows no better direction."""
    known = {m.key for m in KNOWN}
    keys = sorted({key for run in experiment.runs() for key in run.result.metrics} - known)
    found = [key for key in keys if any(row.metric(key) for row in experiment.rows)]
    if not found:
        return None
    lines = (
        (row.section, Line(row.label, tuple(measured(row.metric(key)) for key in found)))
        for row in experiment.rows
    )
    caption = f"Other metrics of {experiment.name}"
    return Table(caption, "Method", tuple(column(metric(key)) for key in found), by_section(lines))


def difference_table(experiment: ReportedExperiment, found: Sequence[Difference]) -> Table | None:
    """One line per compared row: mean difference and interval in each metric."""
    if not found:
        return None
    shown = [m for m in COMPARED if any(d.metric is m for d in found)]
    lines = []
    for row in dict.fromkeys(d.row for d in found):
        own = {d.metric: d for d in found if d.row is row}
        baseline = next(iter(own.values())).baseline
        cells = tuple(_difference_cell(own.get(m)) for m in shown)
        lines.append((f"against {baseline.label}", Line(row.label, cells, IDLE * row.idle)))
    return Table(
        f"Paired differences in {experiment.name}, in points: row minus baseline at the same seed, "
        f"with {PERCENT} t intervals",
        "Method",
        tuple(map(column, shown)),
        by_section(lines),
        ("better or worse: the interval excludes zero; open: it does not.",),
    )


def _difference_cell(found: Difference | None) -> TableCell | None:
    if found is None or found.interval is None:
        return None
    mean = found.interval.mean
    return TableCell(signed(mean), interval_text(found.interval), order=mean, verdict=found.verdict)


def seconds_per_session(run: Record) -> float | None:
    """The mean training time of a session."""
    given = [seconds for seconds in run.run.train_seconds if seconds is not None]
    return sum(given) / len(given) if given else None


def _scoring(run: Record) -> float | None:
    given = [seconds for seconds in run.run.score_seconds if seconds is not None]
    return sum(given) / len(given) if given else None


def _memory(run: Record) -> float | None:
    peak = run.run.peak_rss_bytes
    return None if peak is None else peak / 2**20


def _trainable(run: Record) -> float | None:
    return float(sum(run.result.trainable.values())) if run.result.trainable else None


def overheads(experiment: ReportedExperiment) -> Table | None:
    """Time, memory and trained parameters; time also relative to the baseline at the same seed."""
    if not any(row.spread(seconds_per_session) for row in experiment.rows):
        return None
    lines = ((row.section, Line(row.label, _costs(experiment, row))) for row in experiment.rows)
    return Table(
        f"Costs in {experiment.name}: mean ± standard deviation over seeds",
        "Method",
        (
            Column("Train s/session", better=-1, explanation="training seconds per session"),
            Column("× baseline", better=-1, explanation="relative to the baseline"),  # noqa: RUF001
            Column("Score s/session", better=-1, explanation="scoring seconds per session"),
            Column("Peak MiB", better=-1, explanation="peak memory of the process"),
            Column("Trained", explanation="trained parameters"),
        ),
        by_section(lines),
        _cost_notes(experiment),
    )


def _costs(experiment: ReportedExperiment, row: ResultRow) -> tuple[TableCell | None, ...]:
    return (
        measured(row.spread(seconds_per_session)),
        _ratio(row, experiment.baseline_of(row)),
        measured(row.spread(_scoring)),
        _count(row.spread(_memory)),
        _count(row.spread(_trainable)),
    )


def _count(found: Spread | None) -> TableCell | None:
    return None if found is None else TableCell(f"{found.mean:,.0f}", order=found.mean)


def _ratio(row: ResultRow, baseline: ResultRow | None) -> TableCell | None:
    if baseline is None:
        return None
    ours, theirs = row.by_seed(seconds_per_session), baseline.by_seed(seconds_per_session)
    pairs = [ours[s] / theirs[s] for s in sorted(ours.keys() & theirs.keys()) if theirs[s] > 0]
    found = interval(pairs)
    if found is None:
        return None
    low, high = found.low, found.high
    extra = "" if low is None or high is None else f"[{number(low)}, {number(high)}]"
    return TableCell(number(found.mean), extra, order=found.mean)


def _cost_notes(experiment: ReportedExperiment) -> tuple[str, ...]:
    runs = experiment.runs()
    notes = [f"× baseline: mean over common seeds with its {PERCENT} t interval."]  # noqa: RUF001
    if not any(row.baseline for row in experiment.rows):
        notes = ["No row is marked as the baseline, so that no time is relative."]
    resumed = sum(run.run.resumed > 0 for run in runs)
    if resumed:
        notes.append(
            f"{resumed} of {plural(len(runs), 'run')} had been interrupted and resumed: "
            "their times may be off."
        )
    return tuple(notes)


def query_sweep(rows: Sequence[ResultRow], of: str) -> Table:
    """In the layout of the paper's Table 3: one line per number of queries."""
    lines = tuple(
        Line(f"q = {row.runs[0].setting('rule', 'q')}", (*_metrics(row, PAPER), _seeds(row)))
        for row in rows
    )
    columns = (*map(column, PAPER), Column("Seeds", explanation="number of runs"))
    caption = f"Number of queries q, {of}: mean ± standard deviation over seeds, in percent"
    return ranked(Table(caption, "q", columns, (Section("", lines),)))
