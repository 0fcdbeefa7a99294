"""Stability against plasticity: forgetting to the right, new-task accuracy upward."""

from __future__ import annotations

from risegrad.lab.report.contents import column, measured
from risegrad.lab.report.estimates import Spread
from risegrad.lab.report.markup import Markup, tag
from risegrad.lab.report.metric_names import metric
from risegrad.lab.report.plots.canvas import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Mark,
    canvas,
    frame,
    mark,
    series,
)
from risegrad.lab.report.plots.figure import figure
from risegrad.lab.report.plots.scale import Scale, linear
from risegrad.lab.report.rows import Experiment, ResultRow
from risegrad.lab.report.tables import Line, Section, Table
from risegrad.lab.report.text import plural, spread_text

FORGETTING, PLASTICITY = metric("forgetting"), metric("plasticity")
Point = tuple[int, ResultRow, Spread, Spread]


def frontier_figure(experiment: Experiment, identity: str) -> Markup | None:
    points = _points(experiment)
    if not points:
        return None
    x = linear((end for *_, f, _ in points for end in _ends(f)), LEFT, RIGHT, most=5)
    y = linear((end for *_, p in points for end in _ends(p)), BOTTOM, TOP)
    plot = canvas(
        frame(x, y, "forgetting (points), lower is better", "new-task accuracy (%)"),
        *(series(index, *_cross(index, row, f, p, x, y)) for index, row, f, p in points),
        words=f"New-task accuracy against forgetting for {plural(len(points), 'row')}; "
        "up and to the left is better.",
        kind="frontier",
    )
    legend = [(index, row.label) for index, row, *_ in points]
    title = "Stability and plasticity: up and to the left is better"
    return figure(title, plot, _table(points), identity, legend)


def _points(experiment: Experiment) -> list[Point]:
    found = []
    for index, row in enumerate(experiment.rows):
        forgotten, learned = row.metric(FORGETTING.key), row.metric(PLASTICITY.key)
        if forgotten and learned:
            found.append((index, row, forgotten, learned))
    return found


def _ends(found: Spread) -> tuple[float, float]:
    return found.mean - (found.sd or 0), found.mean + (found.sd or 0)


def _cross(index: int, row: ResultRow, f: Spread, p: Spread, x: Scale, y: Scale) -> list[Markup]:
    """The mean, and one standard deviation to each side."""
    (left, right), (low, high) = _ends(f), _ends(p)
    tip = f"{row.label}: forgetting {spread_text(f)}, new-task accuracy {spread_text(p)} %"
    return [
        tag("line", x1=x(left), x2=x(right), y1=y(p.mean), y2=y(p.mean), class_="spread"),
        tag("line", x1=x(f.mean), x2=x(f.mean), y1=y(low), y2=y(high), class_="spread"),
        mark(Mark(x(f.mean), y(p.mean), tip, index, 0), index),
    ]


def _table(points: list[Point]) -> Table:
    lines = (Line(row.label, (measured(f), measured(p))) for _, row, f, p in points)
    return Table(
        "Forgetting and new-task accuracy: mean ± standard deviation over seeds",
        "Method",
        (column(FORGETTING), column(PLASTICITY)),
        (Section("", tuple(lines)),),
    )
