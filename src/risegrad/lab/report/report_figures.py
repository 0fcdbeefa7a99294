"""The figures of an experiment: forgetting against learning, the stream, sweeps over q."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from risegrad.common.intervals import Spread, spread
from risegrad.lab.frontier.equal_forgetting import band
from risegrad.lab.frontier.equal_learning import Frontier
from risegrad.lab.records.record import Record
from risegrad.lab.report.experiment_tables import PERCENT, column, measured, query_sweep
from risegrad.lab.report.metric_names import PAPER, Metric, metric
from risegrad.lab.report.report_frontier import SectionFrontier
from risegrad.lab.report.report_methods import Method, query_count, sweeps
from risegrad.lab.report.report_text import spread_text
from risegrad.lab.report.result_rows import ReportedExperiment, ResultRow
from risegrad.pages.charts.frontier_chart import BETTER, FrontierBand, FrontierPoint, frontier
from risegrad.pages.charts.stream_chart import StreamPoint, stream
from risegrad.pages.charts.sweep_chart import SweepPoint, sweep
from risegrad.pages.page_blocks import ChartFigure
from risegrad.pages.page_tables import Column, Line, Section, Table
from risegrad.pages.page_text import plural
from risegrad.pages.palette import Palette

FORGETTING, PLASTICITY = metric("forgetting"), metric("plasticity")
DEVIATION = "Thin lines: one standard deviation over seeds, where there are several."
BAND = f" Shaded: the {PERCENT} interval over seeds along each curve."
IN_SHORT = {
    "New": "accuracy right after learning",
    "Fgt": "points lost since",
    "FO": "AdamW or SGD as usual",
    "ZO": "from losses alone",
}
"""For who has just read the headline; longer below the figure."""
Curve = list[tuple[int, Spread]]
"""Sessions counted from 1, and what was measured after each."""


def frontier_figure(
    experiment: ReportedExperiment,
    methods: Sequence[Method],
    palette: Palette,
    found: Sequence[SectionFrontier] = (),
) -> ChartFigure | None:
    """The main picture: what each method learns and forgets, with bands where curves were read."""
    points = [p for method in methods for row in method.rows if (p := _point(method, row))]
    if not points:
        return None
    swept = any(len(method.rows) > 1 for method in methods)
    curves = " A line joins the settings of one method, in their order." if swept else ""
    count = plural(len({p.method for p in points}), "method")
    bands = [place for one in found for place in bands_of(one.found)]
    return ChartFigure(
        f"{experiment.name}-frontier",
        "Forgetting against learning",
        f"Forgetting against accuracy on new tasks for {count}. {BETTER}",
        frontier(points, palette, bands),
        _frontier_table(methods),
        f"{BETTER}{curves} {DEVIATION}{BAND if bands else ''} A click on a name shows it alone.",
        _in_short(methods),
    )


def bands_of(found: Frontier) -> Iterator[FrontierBand]:
    """The intervals along all curves."""
    for name, curve in found.curves.items():
        yield from (FrontierBand(name, at.learned, at.low, at.high) for at in band(curve))


def _in_short(methods: Sequence[Method]) -> str:
    """Of the rules, those that a method is named by."""
    names = " ".join(method.name for method in methods)
    used = [
        word
        for word in IN_SHORT
        if word in (PLASTICITY.title, FORGETTING.title) or re.search(rf"\b{word}\b", names)
    ]
    return " ".join(f"{word}: {IN_SHORT[word]}." for word in used)


def _point(method: Method, row: ResultRow) -> FrontierPoint | None:
    forgotten, learned = row.metric(FORGETTING.key), row.metric(PLASTICITY.key)
    if not forgotten or not learned:
        return None
    tip = f"{row.label}: learned {spread_text(learned)} %, forgot {spread_text(forgotten)} points"
    return FrontierPoint(
        method.name, learned.mean, forgotten.mean, tip, method.setting(row),
        learned.sd, forgotten.sd, row.idle, baseline=row.baseline,
    )  # fmt: skip


def _frontier_table(methods: Sequence[Method]) -> Table:
    rows = [row for method in methods for row in method.rows]
    lines = (
        Line(
            row.label, (measured(row.metric(PLASTICITY.key)), measured(row.metric(FORGETTING.key)))
        )
        for row in rows
    )
    return Table(
        "Learning and forgetting in percent: mean ± standard deviation over seeds",
        "Method",
        (column(PLASTICITY), column(FORGETTING)),
        (Section("", tuple(lines)),),
    )


def stream_figure(
    experiment: ReportedExperiment, methods: Sequence[Method], palette: Palette, score: str
) -> ChartFigure | None:
    """Accuracy over the stream; None if no run has this score."""
    curves = [(m, row, found) for m in methods for row in m.rows if (found := curve(row, score))]
    if not curves:
        return None
    points = [
        StreamPoint(m.name, row.label, t, s.mean, s.sd,
                    f"{row.label}, after session {t}: {spread_text(s)} %")
        for m, row, found in curves for t, s in found
    ]  # fmt: skip
    return ChartFigure(
        f"{experiment.name}-stream-{score}",
        f"Over the stream: {score} on all tasks seen so far",
        f"Lines of {score} after each session for {plural(len(curves), 'row')}.",
        stream(points, palette, f"{score} on all tasks seen so far (%)"),
        _stream_table([(row, found) for _, row, found in curves], score),
    )


def curve(row: ResultRow, score: str) -> Curve:
    """The row's accuracy on all tasks seen, after each session."""
    sessions = max(len(run.result.tasks) for run in row.runs)
    points = [(t + 1, spread(seen(run, score, t) for run in row.runs)) for t in range(sessions)]
    return [(session, found) for session, found in points if found]


def seen(run: Record, score: str, t: int) -> float | None:
    """The measured union, or the mean over the tasks seen where there is none."""
    found = run.result.scores.get(score)
    if found is None or t >= len(found.matrix):
        return None
    if found.union:
        return found.union[t]
    row = [value for i in range(t + 1) if (value := found.at(t, i)) is not None]
    return sum(row) / len(row) if len(row) == t + 1 else None


def _stream_table(curves: Sequence[tuple[ResultRow, Curve]], score: str) -> Table:
    sessions = range(1, max(session for _, found in curves for session, _ in found) + 1)
    lines = []
    for row, found in curves:
        at = dict(found)
        lines.append(Line(row.label, tuple(measured(at.get(t)) for t in sessions)))
    return Table(
        f"{score} on all tasks seen so far, after each session, in percent",
        "Method",
        tuple(Column(str(t), explanation=f"after session {t}") for t in sessions),
        (Section("", tuple(lines)),),
    )


def sweep_figures(
    experiment: ReportedExperiment, methods: Sequence[Method], palette: Palette
) -> Iterator[ChartFigure]:
    """Each metric of the paper against the number of queries, its figures where it has them."""
    for of, rows in sweeps(experiment):
        name = next(m.name for m in methods if rows[0] in m.rows)
        for position, shown in enumerate(PAPER):
            points = list(_sweep_points(rows, name, shown, position))
            if points:
                yield ChartFigure(
                    f"{experiment.name}-queries-{shown.key}",
                    f"{shown.words.capitalize()} ({shown.title}) and the number of queries: {of}",
                    f"Line of {shown.words} over the number of queries q. {of}.",
                    sweep(points, palette, "queries q", f"{shown.words} (%)"),
                    query_sweep(rows, of),
                )


def _sweep_points(
    rows: Sequence[ResultRow], name: str, shown: Metric, position: int
) -> Iterator[SweepPoint]:
    """Ours, then the paper's where rows have a place there."""
    known = [(q, row) for row in rows if (q := query_count(row)) is not None]
    for q, row in known:
        if ours := row.metric(shown.key):
            tip = f"q = {q}: {shown.words} {spread_text(ours)} %"
            yield SweepPoint(name, q, ours.mean, ours.sd, tip)
    if not any(row.metric(shown.key) for _, row in known):
        return
    for q, row in known:
        if row.figures:
            paper = row.figures[position]
            tip = f"q = {q}: {shown.words} (paper) {spread_text(paper)} %"
            yield SweepPoint("the paper's runs", q, paper.mean, paper.sd, tip)
