"""Horizontal bars with intervals, for a few numbers that are compared with each other."""

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
    domain,
    number_format,
    tick_label,
    tip,
    with_data,
)
from risegrad.pages.page_text import visible
from risegrad.pages.palette import Palette

WIDTH, BAR, THIN_BAR = 420, 30, 15
"""Pixels; bars that share a label are thin."""


@dataclass(frozen=True)
class Bar:
    """A value of a method; ``low`` and ``high`` are the ends of its interval."""

    label: str
    method: str
    value: float
    low: float
    high: float
    tip: str


@debug_mode(False)  # checked by the tests
def bars(found: Sequence[Bar], palette: Palette, title: str) -> AnyChart:
    """In the given order; bars of one label are below each other and start at zero."""
    reach = [0.0, *(end for bar in found for end in (bar.low, bar.high, bar.value))]
    # Bars begin at zero: no room beyond it where nothing lies there.
    ends = domain(
        reach, 0.0 if min(reach) == 0 else -math.inf, 0.0 if max(reach) == 0 else math.inf
    )
    methods = list(dict.fromkeys(bar.method for bar in found))
    labels = [visible(label) for label in dict.fromkeys(bar.label for bar in found)]
    grouped = len(labels) < len(found)
    axis = across(title)
    axis.tickCount, axis.labelExpr = 4, tick_label(number_format(ends))

    def at(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=alt.Scale(domain=ends, nice=False), axis=axis)

    # Grouped bars need a legend; single ones are named by the axis.
    colour = alt.Color(
        "method:N",
        scale=alt.Scale(domain=[visible(m) for m in methods],
                        range=[palette[m].colour for m in methods]),
        legend=alt.Legend() if grouped else None,
    )  # fmt: skip
    y = alt.Y("label:N", sort=labels, axis=alt.Axis(title=None, ticks=False, labelLimit=200))
    base = alt.Chart(ROWS).encode(y)
    if grouped:
        base = base.encode(yOffset=alt.YOffset("method:N", sort=[visible(m) for m in methods]))
    layers = [
        base.mark_bar(cornerRadiusEnd=2).encode(at("value"), colour, **tip()),
        base.mark_rule(strokeWidth=1.6, aria=False).encode(at("low"), alt.X2("high:Q")),
    ]
    if not grouped:  # a bar that is too short to be seen has its number
        shown = base.mark_text(align="left", dx=6, aria=False, style="label")
        layers.append(shown.encode(at("high"), text=alt.Text("value:Q", format=".2~g")))
    chart = alt.layer(*layers).properties(
        width=WIDTH, height=(THIN_BAR if grouped else BAR) * max(len(found), 2)
    )
    return with_data(chart, rows=map(vars, found))
