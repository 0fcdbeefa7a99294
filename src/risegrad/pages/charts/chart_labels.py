"""Names beside their points, and the thin lines to names that stand apart."""

from __future__ import annotations

from typing import Any

import altair as alt

from risegrad.pages.charts.chart_axes import AnyChart
from risegrad.pages.charts.label_places import LONGEST, NARROW, LabelPlace
from risegrad.pages.palette import NEUTRAL

LAYER = "labels"
WIDE_ENOUGH = f"datum.narrow === (width < {1.5 * NARROW})"


def label_row(
    name: str,
    point: tuple[float, float],
    side: LabelPlace,
    weight: int,
    lead: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """One label as data of the chart: at its ``point``, or where the line ``lead``s to."""
    short = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    x, y = lead or point
    row = {"name": short, "x": x, "y": y, "weight": weight, "align": side.align, "dx": side.dx,
           "dy": side.dy}  # fmt: skip
    return row | ({"from_x": point[0], "from_y": point[1]} if lead else {})


def leader_layer(x: alt.X, y: alt.Y) -> AnyChart:
    """The lines from points to those labels that stand apart."""
    base = alt.Chart(alt.NamedData(name=LAYER)).transform_filter(
        f"{WIDE_ENOUGH} && isValid(datum.from_x)"
    )
    rule = base.mark_rule(strokeWidth=1, color=NEUTRAL, aria=False)
    return alt.layer(rule.encode(x=x, y=y, x2=alt.X2("from_x:Q"), y2=alt.Y2("from_y:Q")))


def label_layer(x: alt.X, y: alt.Y) -> AnyChart:
    """Text at ``x`` and ``y``, aligned and shifted as each row of the data ``labels`` says.

    Twice: the first, in the colour of the ground and wider, keeps lines away from the letters.
    """

    def of(field: str) -> alt.ExprRef:
        return alt.ExprRef(expr=f"datum.{field}")

    mark: dict[str, Any] = {key: of(key) for key in ("align", "dx", "dy")}
    base = alt.Chart(alt.NamedData(name=LAYER)).encode(x=x, y=y, text=alt.Text("name:N"))
    base = base.transform_filter(WIDE_ENOUGH)
    texts = (
        base.mark_text(
            baseline="alphabetic", aria=False, style=style, fontWeight=of("weight"), **mark
        )
        for style in ("halo", "label")
    )
    return alt.layer(*texts, name=LAYER)
