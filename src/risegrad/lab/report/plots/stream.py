"""Accuracy over the stream: one line per row, mean over seeds, a band of one deviation."""

from __future__ import annotations

from collections.abc import Sequence

from risegrad.lab.records import Record
from risegrad.lab.report.contents import measured
from risegrad.lab.report.estimates import Spread, spread
from risegrad.lab.report.markup import Markup, tag
from risegrad.lab.report.plots.canvas import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Mark,
    canvas,
    frame,
    mark,
    path,
    series,
)
from risegrad.lab.report.plots.figure import figure
from risegrad.lab.report.plots.scale import Scale, linear, steps
from risegrad.lab.report.rows import Experiment, ResultRow
from risegrad.lab.report.tables import Column, Line, Section, Table
from risegrad.lab.report.text import plural, spread_text

Curve = list[tuple[int, Spread]]
"""Sessions counted from 1, and what was measured after each."""


def stream_figure(experiment: Experiment, score: str, identity: str) -> Markup | None:
    curves = [(index, row, curve(row, score)) for index, row in enumerate(experiment.rows)]
    curves = [(index, row, found) for index, row, found in curves if found]
    if not curves:
        return None
    sessions = max(session for _, _, found in curves for session, _ in found)
    ends = [
        s.mean + sign * (s.sd or 0) for _, _, found in curves for _, s in found for sign in (-1, 1)
    ]
    x, y = steps(sessions, LEFT, RIGHT), linear(ends, BOTTOM, TOP)
    drawn = (series(index, *_line(row, found, index, x, y)) for index, row, found in curves)
    plot = canvas(
        frame(x, y, "session", f"{score}, all seen tasks (%)"),
        *drawn,
        words=f"Line plot of {score} after each session for {plural(len(curves), 'row')}.",
        kind="stream",
    )
    legend = [(index, row.label) for index, row, _ in curves]
    rows = [(row, found) for _, row, found in curves]
    title = f"Over the stream: {score} on all tasks seen so far"
    return figure(title, plot, _table(rows, sessions, score), identity, legend)


def curve(row: ResultRow, score: str) -> Curve:
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


def _line(row: ResultRow, found: Curve, index: int, x: Scale, y: Scale) -> list[Markup]:
    above = [(x(t), y(s.mean + (s.sd or 0))) for t, s in found]
    below = [(x(t), y(s.mean - (s.sd or 0))) for t, s in reversed(found)]
    marks = [
        Mark(x(t), y(s.mean), f"{row.label}, session {t}: {spread_text(s)} %", index, t)
        for t, s in found
    ]
    return [
        tag("path", d=path(above + below, closed=True), class_="band"),
        tag("path", d=path([(m.x, m.y) for m in marks]), class_="line"),
        *(mark(m, index) for m in marks),
    ]


def _table(curves: Sequence[tuple[ResultRow, Curve]], sessions: int, score: str) -> Table:
    lines = []
    for row, found in curves:
        at = dict(found)
        cells = tuple(measured(at.get(t)) for t in range(1, sessions + 1))
        lines.append(Line(row.label, cells))
    return Table(
        f"{score} on all tasks seen so far, after each session, in percent",
        "Method",
        tuple(Column(str(t), explanation=f"after session {t}") for t in range(1, sessions + 1)),
        (Section("", tuple(lines)),),
    )
