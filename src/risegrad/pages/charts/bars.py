"""Horizontal bars with intervals, for a few numbers that are compared with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
from altair.utils.schemapi import debug_mode

from risegrad.pages.charts.axes import ROWS, AnyChart, across, domain, number_format, tip, with_data
from risegrad.pages.palette import Palette
from risegrad.pages.text import visible

WIDTH, BAR = 420, 30


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
    """In the given order; bars of one label stand below each other and start at zero."""
    ends = domain([0.0, *(end for bar in found for end in (bar.low, bar.high, bar.value))])
    methods = list(dict.fromkeys(bar.method for bar in found))
    labels = [visible(label) for label in dict.fromkeys(bar.label for bar in found)]
    grouped = len(labels) < len(found)
    axis = across(title)
    axis.tickCount, axis.format = 4, number_format(ends)
    x = alt.X("value:Q", scale=alt.Scale(domain=ends, nice=False), axis=axis)
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
    chart = alt.layer(
        base.mark_bar(cornerRadiusEnd=2).encode(x, colour, **tip()),
        base.mark_rule(strokeWidth=1.6, aria=False).encode(
            alt.X("low:Q", scale=alt.Scale(domain=ends, nice=False), axis=axis),
            alt.X2("high:Q"),
        ),
    ).properties(width=WIDTH, height=BAR * max(len(found), 2))
    return with_data(chart, rows=map(vars, found))
