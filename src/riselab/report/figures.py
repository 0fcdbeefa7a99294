"""The figures of an experiment: forgetting against learning, the stream, queries, matrices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from riselab.common.intervals import Spread, interval, spread
from riselab.frontier.curves import Curve, Frontier
from riselab.pages.charts import MatrixCell, SeriesPoint, matrices, stream, sweep
from riselab.pages.frontier_chart import BETTER, FrontierBand, FrontierPoint, frontier
from riselab.pages.looks import Palette
from riselab.pages.page import ChartFigure
from riselab.pages.tables import Column, Line, Section, Table, spread_cell
from riselab.pages.text import plural, spread_text
from riselab.records.fields import Record
from riselab.report.methods import Method, SectionFrontier, query_count, sweeps
from riselab.report.rows import ReportedExperiment, ResultRow
from riselab.report.tables import FORGETTING, PAPER, PERCENT, PLASTICITY, Metric, query_table

DEVIATION = "Thin lines: one standard deviation over seeds, where there are several."
BAND = f" Shaded: the {PERCENT} interval over seeds along each curve, from three seeds on."
IN_SHORT = {
    "New": "accuracy right after learning",
    "Fgt": "points lost since",
    "FO": "AdamW or SGD as usual",
    "ZO": "from losses alone",
}
"""For who has just read the headline; the page's list of words says more."""
STEPS, SEEDS = 8, 3
"""Places of a band between two neighbouring settings, and the seeds that it takes: with two, t
intervals are twelve standard errors wide, and nothing where the two curves cross."""


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
    names = " ".join(method.name for method in methods)
    titles = (PLASTICITY.title, FORGETTING.title)
    used = [word for word in IN_SHORT if word in titles or re.search(rf"\b{word}\b", names)]
    lines = (
        Line(row.label, tuple(spread_cell(row.metric(m.key)) for m in (PLASTICITY, FORGETTING)))
        for method in methods
        for row in method.rows
    )
    table = Table(
        "Learning and forgetting in percent: mean ± standard deviation over seeds",
        "Method",
        (PLASTICITY.column(), FORGETTING.column()),
        (Section("", tuple(lines)),),
    )
    return ChartFigure(
        f"{experiment.name}-frontier",
        "Forgetting against learning",
        f"Forgetting against accuracy on new tasks for {count}. {BETTER}",
        frontier(points, palette, bands),
        table,
        f"{BETTER}{curves} {DEVIATION}{BAND if bands else ''} A click on a name shows it alone.",
        " ".join(f"{word}: {IN_SHORT[word]}." for word in used),
    )


def _point(method: Method, row: ResultRow) -> FrontierPoint | None:
    forgotten, learned = row.metric(FORGETTING.key), row.metric(PLASTICITY.key)
    if not forgotten or not learned:
        return None
    return frontier_point(method.name, row.label, learned, forgotten, method.setting(row), row.idle)


def frontier_point(
    method: str, label: str, learned: Spread, forgotten: Spread, setting: str, idle: bool,
    line: str = "",
) -> FrontierPoint:  # fmt: skip
    """A setting in the chart, with what pointing at it tells."""
    tip = f"{label}: learned {spread_text(learned)} %, forgot {spread_text(forgotten)} points"
    return FrontierPoint(
        method, learned.mean, forgotten.mean, tip, setting, learned.sd, forgotten.sd, idle, line
    )


def bands_of(found: Frontier) -> Iterator[FrontierBand]:
    """The intervals of forgetting along all curves that have several settings and enough seeds."""
    for name, curve in found.curves.items():
        for level in _along(curve):
            one = interval(list(curve.forgotten_at(level).values()))
            if one and one.n >= SEEDS and one.low is not None and one.high is not None:
                yield FrontierBand(name, level, one.low, one.high)


def _along(curve: Curve) -> Iterator[float]:
    for low, high in pairwise(curve.front):
        gap = high.learned - low.learned
        yield from (low.learned + gap * step / STEPS for step in range(STEPS))
    if len(curve.front) > 1:
        yield curve.front[-1].learned


def stream_figure(
    experiment: ReportedExperiment, methods: Sequence[Method], palette: Palette, score: str
) -> ChartFigure | None:
    """Accuracy over the stream; None if no run has this score."""
    points = [
        SeriesPoint(m.name, row.label, t, s.mean, s.sd,
                    f"{row.label}, after session {t}: {spread_text(s)} %")
        for m in methods for row in m.rows for t, s in _curve(row, score)
    ]  # fmt: skip
    if not points:
        return None
    at = {(p.line, p.x): Spread(p.mean, p.sd, 0) for p in points}
    sessions = range(1, max(int(p.x) for p in points) + 1)
    rows = dict.fromkeys(p.line for p in points)
    lines = (Line(row, tuple(spread_cell(at.get((row, t))) for t in sessions)) for row in rows)
    table = Table(
        f"{score} on all tasks seen so far, after each session, in percent",
        "Method",
        tuple(Column(str(t), explanation=f"after session {t}") for t in sessions),
        (Section("", tuple(lines)),),
    )
    return ChartFigure(
        f"{experiment.name}-stream-{score}",
        f"Over the stream: {score} on all tasks seen so far",
        f"Lines of {score} after each session for {plural(len(rows), 'row')}.",
        stream(points, palette, f"{score} on all tasks seen so far (%)"),
        table,
    )


def _curve(row: ResultRow, score: str) -> Iterator[tuple[int, Spread]]:
    """The row's accuracy on all tasks seen, after each session counted from 1."""
    for t in range(max(len(run.result.tasks) for run in row.runs)):
        if found := spread(_seen(run, score, t) for run in row.runs):
            yield t + 1, found


def _seen(run: Record, score: str, t: int) -> float | None:
    """The measured union, or the mean over the tasks seen where there is none."""
    found = run.result.scores.get(score)
    if found is None or t >= len(found.matrix):
        return None
    if found.union:
        return found.union[t]
    seen = spread(found.at(t, i) for i in range(t + 1))
    return seen.mean if seen and seen.n == t + 1 else None


def sweep_figures(
    experiment: ReportedExperiment, methods: Sequence[Method], palette: Palette
) -> Iterator[ChartFigure]:
    """Each metric of the paper against the number of queries, its figures where it has them."""
    for of, rows in sweeps(experiment):
        name = next(m.name for m in methods if rows[0] in m.rows)
        for place, shown in enumerate(PAPER):
            if points := list(_sweep_points(rows, name, shown, place)):
                yield ChartFigure(
                    f"{experiment.name}-queries-{shown.key}",
                    f"{shown.words.capitalize()} ({shown.title}) and the number of queries: {of}",
                    f"Line of {shown.words} over the number of queries q. {of}.",
                    sweep(points, palette, "queries q", f"{shown.words} (%)"),
                    query_table(rows, of),
                )


def _sweep_points(
    rows: Sequence[ResultRow], name: str, shown: Metric, place: int
) -> Iterator[SeriesPoint]:
    """Ours, then the paper's where rows have a place there."""
    known = [(query_count(row) or 0, row) for row in rows]
    ours = [(q, found) for q, row in known if (found := row.metric(shown.key))]
    paper = [(q, row.place.figures[place]) for q, row in known if row.place and ours]
    for line, points in ((name, ours), ("the paper's runs", paper)):
        by = " (paper)" if points is paper else ""
        for q, found in points:
            tip = f"q = {q}: {shown.words}{by} {spread_text(found)} %"
            yield SeriesPoint(line, line, q, found.mean, found.sd, tip)


Matrix = list[list[Spread | None]]


def matrix_figure(experiment: ReportedExperiment, score: str) -> ChartFigure | None:
    """The accuracy matrices of all rows as heat maps; None if no run has this score."""
    found = [(row, _mean_matrix(row, score)) for row in experiment.rows]
    found = [(row, matrix) for row, matrix in found if any(map(any, matrix))]
    if not found:
        return None
    cells = [cell for row, matrix in found for cell in _cells(row, matrix)]
    return ChartFigure(
        f"{experiment.name}-matrices-{score}",
        f"{score} of each task after each session, mean over seeds",
        f"Heat maps of {score} for {plural(len(found), 'row')}: one line per session, one column "
        "per task.",
        matrices(cells, f"{score} (%)"),
        _matrix_table(found, score),
    )


def _mean_matrix(row: ResultRow, score: str) -> Matrix:
    size = len(row.runs[0].result.tasks)
    found = [s for run in row.runs if (s := run.result.scores.get(score))]
    return [
        [spread(s.at(t, i) for s in found if t < len(s.matrix)) for i in range(size)]
        for t in range(size)
    ]


def _cells(row: ResultRow, matrix: Matrix) -> Iterator[MatrixCell]:
    """Names of tasks as in the records, where their order does not depend on the seed."""
    named = [tuple(task.name for task in run.result.tasks) for run in row.runs]
    names = [f" ({name})" if len(set(named)) == 1 else "" for name in named[0]]
    for t, line in enumerate(matrix, 1):
        for i, value in enumerate(line, 1):
            if value:
                of = f"after session {t}, task {i}{names[i - 1]}"
                tip = f"{row.label}, {of}: {spread_text(value)} %"
                yield MatrixCell(row.label, t, i, value.mean, tip)


def _matrix_table(found: list[tuple[ResultRow, Matrix]], score: str) -> Table:
    """A section for each row; shorter streams leave the last columns empty."""
    size = max(len(matrix) for _, matrix in found)
    sections = []
    for row, matrix in found:
        lines = [(f"session {t}", line) for t, line in enumerate(matrix, 1)]
        before = [run.result.before.get(score, ()) for run in row.runs]
        untrained = [spread(b[i] for b in before if i < len(b)) for i in range(len(matrix))]
        if any(untrained):
            lines.insert(0, ("nothing", untrained))
        full = ((label, [*line, *[None] * (size - len(line))]) for label, line in lines)
        shown = (Line(label, tuple(map(spread_cell, line))) for label, line in full)
        sections.append(Section(row.label, tuple(shown)))
    columns = tuple(Column(f"task {i + 1}") for i in range(size))
    caption = f"{score} in percent, mean ± standard deviation over seeds"
    return Table(caption, "After", columns, tuple(sections))
