"""The picture of the benchmarks: for each ratio, how much room its target leaves."""

import math
from typing import Any

import altair as alt

from riselab.pages.charts import ROWS, AnyChart, with_data
from riselab.pages.page import ChartFigure
from riselab.pages.tables import Column, Line, Section, Table, TableCell

COLOURS = {"met": "#1b7f5c", "missed": "#c2410c"}
ENDS = (0.5, 30.0)
"""What lies beyond is drawn at the end: the table has the number."""


def room(value: float, target: str) -> float:
    """How many times better than asked for; below 1 the target is missed.

    >>> room(0.5, "<= 2"), room(6, ">= 3"), room(3, "<= 2") < 1
    (4.0, 2.0, True)
    """
    kind, bound = target.split()
    if kind == "<=":
        return float(bound) / value if value else math.inf
    return value / float(bound)


def benchmark_figure(suites: dict[str, list[dict[str, Any]]]) -> ChartFigure:
    """All lines of a record of the benchmarks, in its order."""
    lines = [line for suite in suites.values() for line in suite]
    rows = [
        {
            "name": line["name"],
            "one": 1.0,
            "room": min(max(room(line["value"], line["target"]), ENDS[0]), ENDS[1]),
            "verdict": "met" if line["met"] else "missed",
        }
        for line in lines
    ]
    words = "For each benchmark how many times better than its target it is, on a log scale"
    numbers = tuple(
        Line(line["name"], (TableCell(f"{line['value']:.3g}"), TableCell(line["target"])))
        for line in lines
    )
    table = Table(words, "what", (Column("ratio"), Column("target")), (Section("", numbers),))
    return ChartFigure("benchmarks", "Room to the target", words, _chart(rows), table)


def _chart(rows: list[dict[str, Any]]) -> AnyChart:
    scale = alt.Scale(type="log", domain=list(ENDS))
    axis = alt.Axis(title="times better than the target", values=[0.5, 1, 2, 5, 10, 30])
    x = alt.X("room:Q", scale=scale, axis=axis)
    y = alt.Y("name:N", sort=[row["name"] for row in rows],
              axis=alt.Axis(title=None, ticks=False, labelLimit=640))  # fmt: skip
    hues = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    colour = alt.Color("verdict:N", title=None, scale=hues)
    base = alt.Chart(ROWS).encode(y)
    chart = alt.layer(
        base.mark_rule(strokeWidth=2).encode(
            alt.X("one:Q", scale=scale, axis=axis), alt.X2("room:Q"), colour
        ),
        base.mark_point(filled=True, size=60, opacity=1).encode(x, colour),
    ).properties(width=360, height=20 * len(rows))
    return with_data(chart, rows=rows)
