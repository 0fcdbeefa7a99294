"""A metric over the values of one setting, the paper's points beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from risegrad.pages.charts.chart_axes import (
    POINT,
    ROWS,
    AnyChart,
    across,
    domain,
    ends,
    linear,
    tip,
    upward,
    with_data,
)
from risegrad.pages.page_text import visible
from risegrad.pages.palette import NEUTRAL, Palette

WIDTH, HEIGHT = 420, 280


@dataclass(frozen=True)
class SweepPoint:
    """The metric at one value of the setting; ``method`` names the curve."""

    method: str
    value: float
    mean: float
    sd: float | None
    tip: str


@debug_mode(False)  # checked by the tests
def sweep(points: Sequence[SweepPoint], palette: Palette, setting: str, title: str) -> AnyChart:
    """Curves that the palette does not know (the paper's) are grey and dashed."""
    reach = [p.mean + sign * (p.sd or 0.0) for p in points for sign in (-1, 1)]
    within = domain(reach, 0.0 if all(p.mean >= 0 for p in points) else -100.0, 100)
    rows = []
    for p in points:
        low, high = ends(p.mean, p.sd, within)
        rows.append({"method": p.method, "value": p.value, "mean": p.mean, "low": low,
                     "high": high, "tip": p.tip})  # fmt: skip
    x = alt.X("value:Q", scale=_powers(points), axis=_at_values(points, setting))
    y = alt.Y("mean:Q", scale=linear(within), axis=upward(title))
    names = list(dict.fromkeys(p.method for p in points))
    base = alt.Chart(ROWS).encode(x, _colour(names, palette))
    dash = alt.StrokeDash("method:N", scale=_scale(names, [
        list(palette[name].dash) if name in palette else [5, 4] for name in names]))  # fmt: skip
    shape = alt.Shape("method:N", scale=_scale(names, [
        palette[name].shape if name in palette else "circle" for name in names]))  # fmt: skip
    chart = alt.layer(
        base.mark_line(strokeWidth=2, aria=False).encode(y, dash),
        base.mark_rule(strokeWidth=1.4, aria=False).encode(
            alt.Y("low:Q", scale=linear(within), axis=upward(title)), alt.Y2("high:Q")
        ),
        base.mark_point(filled=True, size=POINT, opacity=1).encode(y, shape, **tip()),
    ).properties(width=WIDTH, height=HEIGHT)
    return with_data(chart, rows=rows)


def _scale(names: Sequence[str], values: list[Any]) -> alt.Scale:
    return alt.Scale(domain=[visible(name) for name in names], range=values)


def _colour(names: Sequence[str], palette: Palette) -> alt.Color:
    colours = [palette[name].colour if name in palette else NEUTRAL for name in names]
    return alt.Color("method:N", scale=_scale(names, list(colours)))


def _powers(points: Sequence[SweepPoint]) -> alt.Scale:
    """For values like 1, 4, 16: equal ratios are equal distances."""
    given = [p.value for p in points]
    return alt.Scale(type="log", base=2, nice=False, domain=[min(given) / 1.15, max(given) * 1.15])


def _at_values(points: Sequence[SweepPoint], setting: str) -> alt.Axis:
    axis = across(setting)
    axis.values = sorted({p.value for p in points})
    axis.format = "~g"
    return axis
