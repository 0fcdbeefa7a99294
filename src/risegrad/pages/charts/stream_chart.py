"""Accuracy over the stream: a line for each row, with a band of one deviation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
from altair.utils.schemapi import debug_mode

from risegrad.pages.charts.chart_axes import (
    HEIGHT,
    POINT,
    ROWS,
    WIDTH,
    AnyChart,
    across,
    by_method,
    dashes,
    domain,
    emphasis,
    ends,
    linear,
    picking,
    tip,
    upward,
    with_data,
)
from risegrad.pages.palette import Palette

FEW = 8
"""With more lines than this, bands would cover each other."""


@dataclass(frozen=True)
class StreamPoint:
    """What a row of a method reached after a session, mean and deviation over seeds."""

    method: str
    row: str
    session: int
    mean: float
    sd: float | None
    tip: str


@debug_mode(False)  # checked by the tests
def stream(points: Sequence[StreamPoint], palette: Palette, title: str) -> AnyChart:
    """The chart of these points."""
    reach = [p.mean + sign * (p.sd or 0.0) for p in points for sign in (-1, 1)]
    within = domain(reach, 0, 100)
    last = max(p.session for p in points)
    rows = []
    for p in points:
        low, high = ends(p.mean, p.sd, within)
        rows.append({"method": p.method, "row": p.row, "session": p.session, "mean": p.mean,
                     "low": low, "high": high, "tip": p.tip})  # fmt: skip
    x = alt.X("session:Q", scale=linear([1, max(last, 2)]), axis=_sessions(last))
    y = alt.Y("mean:Q", scale=linear(within), axis=upward(title))
    names = list(dict.fromkeys(p.method for p in points))
    colour, shape = by_method(names, palette)
    base = alt.Chart(ROWS).encode(x, colour, alt.Detail("row:N"))
    few = len({p.row for p in points}) <= FEW
    band = base.mark_area(aria=False).encode(
        alt.Y("low:Q", scale=linear(within), axis=upward(title)), alt.Y2("high:Q"),
        emphasis(0.12, 0.0),
    )  # fmt: skip
    lines = base.mark_line(strokeWidth=2, aria=False)
    lines = lines.encode(y, dashes(names, palette), emphasis(0.9, 0.08))
    marks = base.mark_point(filled=True, size=POINT).encode(y, shape, emphasis(0.9, 0.08), **tip())
    layers = [band, lines] if few else [lines]
    chart = alt.layer(*layers, marks.add_params(picking()))
    return with_data(chart.properties(width=WIDTH, height=HEIGHT), rows=rows)


def _sessions(last: int) -> alt.Axis:
    every = -(-last // 12)
    axis = across("Session: tasks seen so far")
    axis.values = list(range(1, last + 1, every))
    axis.format = "d"
    return axis
