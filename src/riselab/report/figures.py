"""The figures of an experiment: forgetting against learning, the stream, matrices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from riselab.common.intervals import Estimate, estimate
from riselab.frontier.curves import Measures
from riselab.frontier.equal_learning import Frontier
from riselab.pages.charts import MatrixCell, Palette, SeriesPoint, matrices, stream
from riselab.pages.frontier_chart import (
    AXES,
    BETTER,
    FEW_METHODS,
    FrontierBand,
    FrontierPoint,
    frontier,
)
from riselab.pages.page import ChartFigure
from riselab.pages.tables import Column, Line, Section, Table, spread_cell
from riselab.pages.text import plural, spread_text
from riselab.records.fields import Record
from riselab.report.methods import Method, SectionFrontier, swept
from riselab.report.rows import ReportedExperiment, ResultRow
from riselab.report.tables import DRIFT, EXACT, FORGETTING, PERCENT, PLASTICITY

DEVIATION = "Thin lines: one standard deviation over seeds, where there are several."
BAND = f" Shaded: the {PERCENT} interval over seeds at the settings, from three seeds on."
IN_SHORT = {
    "New": "accuracy right after learning",
    "Fgt": "points lost since",
    "Drift": "how far the answers to everything else have moved",
    "FO": "AdamW or SGD as usual",
    "ZO": "from losses alone",
}
"""For who has just read the headline; the page's list of words says more."""
CHAT_AXES = ("Learned: exact answers (%), higher is better →",
             "Drift: nats per token (log scale), lower is better ↓")  # fmt: skip
STEPS, SEEDS = 8, 3
"""Places of a band between two neighbouring settings, and the seeds that it takes: with two, t
intervals are twelve standard errors wide."""


def frontier_figure(
    experiment: ReportedExperiment,
    methods: Sequence[Method],
    palette: Palette,
    found: Sequence[SectionFrontier] = (),
    *,
    small: bool = False,
) -> ChartFigure | None:
    """The main picture: what each method learns and forgets, with bands where few curves were
    read."""
    measures = experiment.measures
    points = [
        p for method in methods for row in method.rows if (p := _point(method, row, measures))
    ]
    if not points:
        return None
    learned, forgotten = (EXACT, DRIFT) if experiment.chat else (PLASTICITY, FORGETTING)
    shown = {p.method for p in points}
    bands = [b for one in found for b in bands_of(one.found) if b.method in shown]
    bands = bands if len(shown) <= FEW_METHODS else []  # many would cover each other
    several = any(len(method.rows) > 1 for method in methods)
    curves = " A line joins the settings of one method, in their order." if several else ""
    lines = (
        Line(row.label, tuple(spread_cell(row.spread(m.of), digits=m.digits)
                              for m in (learned, forgotten)))
        for method in methods
        for row in method.rows
    )  # fmt: skip
    axes, better = AXES, BETTER
    if experiment.chat:
        axes, better = CHAT_AXES, "Further right is more learned, lower is less drift."
    return ChartFigure(
        f"{experiment.name}-{'small' if small else 'frontier'}",
        f"{forgotten.words.capitalize()} against learning",
        f"{forgotten.words.capitalize()} against {learned.words} for "
        f"{plural(len(shown), 'method')}. {better}",
        frontier(points, palette, bands, axes, ratios=experiment.chat, small=small),
        Table(
            "Learning and what it cost: mean ± standard deviation over seeds",
            "Method",
            (learned.column(), forgotten.column()),
            (Section("", tuple(lines)),),
        ),
        f"{better}{curves} {DEVIATION}{BAND if bands else ''} A click on a name shows it alone.",
        in_short([learned.title, forgotten.title, *(method.name for method in methods)]),
        small,
    )


def in_short(names: Sequence[str]) -> str:
    """What the abbreviations among these names mean."""
    shown = " ".join(names)
    used = (f"{w}: {meaning}." for w, meaning in IN_SHORT.items() if re.search(rf"\b{w}\b", shown))
    return " ".join(used)


def _point(method: Method, row: ResultRow, measures: Measures) -> FrontierPoint | None:
    """A setting in the chart, with what pointing at it tells."""
    learned, forgotten = row.spread(PLASTICITY.of), row.spread(FORGETTING.of)
    if not forgotten or not learned:
        return None
    setting, forgotten = swept(row), forgotten.times(measures.factor)
    lost = f"{measures.verb} {spread_text(forgotten, measures.digits)} {measures.unit}"
    tip = f"{row.label}: learns {spread_text(learned, 1)} %, {lost}"
    return FrontierPoint(
        method.name, learned.mean, forgotten.mean, tip, setting.name.replace("=", " "),
        learned.sd, forgotten.sd, row.idle, setting.line,
    )  # fmt: skip


def bands_of(found: Frontier) -> Iterator[FrontierBand]:
    """The intervals of forgetting at the settings of each curve, and straight lines between them.

    Read between two settings the interval is narrow where the lines of the seeds cross: a bow tie.
    """
    for name, curve in found.curves.items():
        read = [(s.learned, estimate(curve.forgotten_at(s.learned).values())) for s in curve.front]
        ends = [
            (learned, one.low * found.measures.factor, one.high * found.measures.factor)
            for learned, one in read
            if one and one.n >= SEEDS and one.low is not None and one.high is not None
        ]
        for left, right in pairwise(ends):
            for step in range(STEPS + 1):
                part = step / STEPS
                at, low, high = (a + part * (b - a) for a, b in zip(left, right, strict=True))
                yield FrontierBand(name, at, low, high)


def stream_figure(
    experiment: ReportedExperiment, methods: Sequence[Method], palette: Palette, score: str
) -> ChartFigure | None:
    """Accuracy over the stream; None if no run of several tasks has this score."""
    points = [
        SeriesPoint(m.name, row.label, t, s.mean, s.sd,
                    f"{row.label}, after session {t}: {spread_text(s)} %")
        for m in methods for row in m.rows for t, s in _curve(row, score)
    ]  # fmt: skip
    if len({p.x for p in points}) < 2:
        return None
    at = {(p.line, p.x): Estimate(p.mean, p.sd, 0) for p in points}
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


def _curve(row: ResultRow, score: str) -> Iterator[tuple[int, Estimate]]:
    """The row's accuracy on all tasks seen, after each session counted from 1."""
    for t in range(max(len(run.result.tasks) for run in row.runs)):
        if found := estimate(_seen(run, score, t) for run in row.runs):
            yield t + 1, found


def _seen(run: Record, score: str, t: int) -> float | None:
    """The measured union, or the mean over the tasks seen where there is none."""
    found = run.result.scores.get(score)
    if found is None or t >= len(found.matrix):
        return None
    if found.union:
        return found.union[t]
    seen = estimate(found.at(t, i) for i in range(t + 1))
    return seen.mean if seen and seen.n == t + 1 else None


Matrix = list[list[Estimate | None]]


def matrix_figure(experiment: ReportedExperiment, score: str) -> ChartFigure | None:
    """The accuracy matrices of all rows as heat maps; None if no run has this score."""
    found = [(row, _mean_matrix(row, score)) for row in experiment.rows]
    found = [(row, matrix) for row, matrix in found if len(matrix) > 1 and any(map(any, matrix))]
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
        [estimate(s.at(t, i) for s in found if t < len(s.matrix)) for i in range(size)]
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
        untrained = [estimate(b[i] for b in before if i < len(b)) for i in range(len(matrix))]
        if any(untrained):
            lines.insert(0, ("nothing", untrained))
        full = ((label, [*line, *[None] * (size - len(line))]) for label, line in lines)
        shown = (Line(label, tuple(map(spread_cell, line))) for label, line in full)
        sections.append(Section(row.label, tuple(shown)))
    columns = tuple(Column(f"task {i + 1}") for i in range(size))
    caption = f"{score} in percent, mean ± standard deviation over seeds"
    return Table(caption, "After", columns, tuple(sections))
