"""Axes that fit the data, and what the charts with axes share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import altair as alt

from risegrad.pages.page_text import visible
from risegrad.pages.palette import Palette

AnyChart = alt.LayerChart | alt.FacetChart
ROWS = alt.NamedData(name="rows")
WIDTH, HEIGHT = 680, 330
POINT = 75
"""Area of a mark in square pixels."""


class _Datasets:
    """Data that Altair passes on as they are, instead of copying and checking every number."""

    _schema: ClassVar[dict[str, Any]] = {"type": "object"}

    def __init__(self, content: dict[str, list[dict[str, Any]]]) -> None:
        self.content = content

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        return self.content


def with_data(chart: AnyChart, **given: Iterable[Mapping[str, Any]]) -> AnyChart:
    """The chart with the data that its layers name; control characters are removed from texts."""
    chart.datasets = _Datasets({name: _cleaned(rows) for name, rows in given.items()})
    return chart


def _cleaned(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{key: _plain(value) for key, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    """Text without control characters; what is not a finite number is not drawn."""
    if isinstance(value, str):
        return visible(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def domain(
    values: Iterable[float], least: float = -math.inf, most: float = math.inf, ticks: int = 6
) -> list[float]:
    """Round ends around the values, never beyond what is possible.

    >>> domain([3.1, 97.8], 0.0, 100.0)
    [0.0, 100.0]
    >>> domain([41.0, 57.5], 0, 100)
    [40.0, 60.0]
    """
    given = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(given), max(given)
    if high - low < 1e-9:
        around = abs(high) / 10 or 1.0
        low, high = low - around, high + around
    room = 0.03 * (high - low)  # marks have a size
    low, high = low - room, high + room
    step = _round_step((high - low) / (ticks - 1)) / 2
    low = step * math.floor(low / step + 1e-9)
    high = step * math.ceil(high / step - 1e-9)
    return [round(max(low, least), 10), round(min(high, most), 10)]


def _round_step(raw: float) -> float:
    """The next of 1, 2, 5, 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))


def ends(mean: float, sd: float | None, within: Sequence[float]) -> tuple[float, float]:
    """One deviation to each side, cut where the axis ends."""
    low, high = mean - (sd or 0.0), mean + (sd or 0.0)
    return max(low, within[0]), min(high, within[1])


def linear(within: Sequence[float]) -> alt.Scale:
    """A scale over exactly this range."""
    return alt.Scale(domain=list(within), zero=False, nice=False)


def upward(title: str) -> alt.Axis:
    """The title of the vertical axis is above it, where it can be read without turning."""
    return alt.Axis(
        title=title, titleAngle=0, titleAlign="left", titleAnchor="end", titleX=-34, titleY=-12,
        titleBaseline="bottom", tickCount=6,
    )  # fmt: skip


def across(title: str) -> alt.Axis:
    """A horizontal axis."""
    return alt.Axis(title=title, grid=False, tickCount=7, titlePadding=8, titleAnchor="end")


def by_method(names: Sequence[str], palette: Palette) -> tuple[alt.Color, alt.Shape]:
    """Colour and shape of the field ``method``; names are as shown."""
    shown = [visible(name) for name in names]
    colours = alt.Scale(domain=shown, range=[palette[name].colour for name in names])
    shapes = alt.Scale(domain=shown, range=[palette[name].shape for name in names])
    return alt.Color("method:N", scale=colours), alt.Shape("method:N", scale=shapes)


def dashes(names: Sequence[str], palette: Palette) -> alt.StrokeDash:
    """Of the lines of the field ``method``: what tells them apart where colours begin anew."""
    found = alt.Scale(
        domain=[visible(name) for name in names], range=[list(palette[name].dash) for name in names]
    )
    return alt.StrokeDash("method:N", scale=found)


def picking() -> alt.Parameter:
    """A click on a name in the legend leaves that method and makes the others pale."""
    return alt.selection_point(name="picked", fields=["method"], bind="legend")


def emphasis(picked: float | None, others: float) -> alt.OpacityValue:
    """Opacity of the picked methods (all, where none is) and of the others.

    None leaves it to the rows' own field ``clear``. Made in parts, because Altair needs 20 ms to
    understand the short forms.
    """
    own = {"field": "clear", "type": "quantitative", "scale": None, "legend": None}
    found: dict[str, Any] = own if picked is None else {"value": picked}
    return alt.OpacityValue(others, condition={"param": "picked", **found})


def tip() -> dict[str, Any]:
    """What pointing at a mark tells, which is also its name for a screen reader."""
    return {"tooltip": alt.Tooltip("tip:N"), "description": alt.Description("tip:N")}


def number_format(within: Sequence[float]) -> str:
    """For d3: plain digits where they are few, else powers of ten."""
    largest = max(map(abs, within))
    return "~g" if largest == 0 or 1e-2 <= largest < 1e6 else ".1~e"


def tick_label(form: str) -> str:
    """An expression for ticks in this format, except that zero is 0 and not 0e+0."""
    return f"datum.value === 0 ? '0' : format(datum.value, '{form}')"
