"""Accuracy matrices as heat maps: sessions downward, tasks to the right, one map per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
from altair.utils.schemapi import debug_mode

from risegrad.pages.charts.chart_axes import ROWS, AnyChart, domain, with_data

SIDE, COLUMNS = 200, 3
WRITTEN = 8
"""With more tasks than this, numbers in the cells would be too small to read."""


@dataclass(frozen=True)
class MatrixCell:
    """One number of one row's matrix."""

    row: str
    session: int
    task: int
    value: float
    tip: str


@debug_mode(False)  # checked by the tests
def matrices(cells: Sequence[MatrixCell], title: str) -> AnyChart:
    """All maps on one scale of colours, so that equal colours are equal accuracies."""
    within = domain((cell.value for cell in cells), 0, 100)
    names = list(dict.fromkeys(cell.row for cell in cells))
    rows = [{**vars(cell), "order": names.index(cell.row)} for cell in cells]
    plain = alt.Axis(labelAngle=0, ticks=False, domain=False, labelPadding=4)
    base = alt.Chart().encode(
        alt.X("task:O", axis=plain, title="task"), alt.Y("session:O", axis=plain, title="session")
    )
    scale = alt.Scale(scheme="viridis", domain=within, nice=False)
    legend = alt.Legend(title=title, orient="top", gradientLength=180, titleLimit=320)
    maps = base.mark_rect().encode(
        alt.Color("value:Q", scale=scale, legend=legend),
        tooltip=alt.Tooltip("tip:N"), description=alt.Description("tip:N"),
    )  # fmt: skip
    layers = [maps]
    if max(cell.task for cell in cells) <= WRITTEN:
        # The light half of the scale carries black, the dark half white.
        light = {"test": f"datum.value > {sum(within) / 2}", "value": "#000000"}
        ink = alt.ColorValue("#ffffff", condition=light)
        text = base.mark_text(aria=False, fontSize=11)
        # It lies above its cell, and pointing at it is pointing at the cell.
        number = alt.Text("value:Q", format=".0f")
        layers.append(text.encode(text=number, color=ink, tooltip=alt.Tooltip("tip:N")))
    row = alt.Facet("row:N", title=None, sort=alt.EncodingSortField(field="order", op="min"))
    map_of_one = alt.layer(*layers, data=ROWS).properties(width=SIDE, height=SIDE)
    return with_data(map_of_one.facet(facet=row, columns=COLUMNS), rows=rows)
