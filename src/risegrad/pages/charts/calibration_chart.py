"""Predicted against true: points on the diagonal were predicted right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
from altair.utils.schemapi import debug_mode

from risegrad.pages.charts.chart_axes import (
    ROWS,
    AnyChart,
    across,
    by_method,
    tick_label,
    tip,
    upward,
    with_data,
)
from risegrad.pages.palette import Palette

SIDE = 340


@dataclass(frozen=True)
class CalibrationPoint:
    """One prediction and what came true."""

    method: str
    predicted: float
    true: float
    tip: str


@debug_mode(False)  # checked by the tests
def calibration(points: Sequence[CalibrationPoint], palette: Palette) -> AnyChart:
    """Axes are linear near zero and logarithmic beyond: changes differ by powers of ten."""
    both = [value for p in points for value in (p.predicted, p.true)]
    values = [value for value in both if math.isfinite(value)]
    unit = _unit(values)
    ends = [min([*values, 0.0]), max([*values, 0.0])]
    ends = [ends[0] * 1.2, ends[1] * 1.2 or unit]
    scale = alt.Scale(type="symlog", constant=unit, domain=ends, nice=False)
    ticks = _ticks(unit, *ends)
    x_axis, y_axis = across("Predicted change of the old loss"), upward("True change")
    for axis in (x_axis, y_axis):
        axis.values, axis.grid = ticks, True
        axis.labelExpr = tick_label(".0e")
    x, y = alt.X("x:Q", scale=scale, axis=x_axis), alt.Y("y:Q", scale=scale, axis=y_axis)
    colour, shape = by_method(list(dict.fromkeys(p.method for p in points)), palette)
    rows = ({"method": p.method, "x": p.predicted, "y": p.true, "tip": p.tip} for p in points)
    diagonal = alt.Chart(alt.NamedData(name="diagonal"))
    chart = alt.layer(
        diagonal.mark_line(strokeDash=[4, 4], strokeWidth=1.2, color="#8792a2", aria=False).encode(
            x, y
        ),
        alt.Chart(ROWS).mark_point(filled=True, size=45, opacity=0.75).encode(
            x, y, colour, shape, **tip()
        ),
    ).properties(width=SIDE, height=SIDE)  # fmt: skip
    return with_data(chart, rows=rows, diagonal=({"x": end, "y": end} for end in ends))


def _unit(values: Sequence[float]) -> float:
    """The smallest fifth belongs to the linear part of the axes."""
    sizes = sorted(abs(value) for value in values if value)
    return sizes[len(sizes) // 5] if sizes else 1.0


def _ticks(unit: float, low: float, high: float) -> list[float]:
    """Zero and at most three powers of ten on either side, as far as the axes reach."""
    found = [0.0]
    for end in (low, high):
        last = math.floor(math.log10(abs(end))) if end else None
        first = math.ceil(math.log10(unit))
        if last is not None and last >= first:
            every = max(1, (last - first) // 2)
            found += [math.copysign(10.0**k, end) for k in range(last, first - 1, -every)]
    return sorted(found)
