"""Charts, plain data in, an Altair chart out; and what they look like.

They are made without Altair's checks (``debug_mode(False)``): these go over every number of the
data at every step of the making, which costs more than all the rest of a page. The tests check.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from risegrad.common.imports import need
from riselab.pages.text import visible

need("altair", "lab", "charts")
import altair as alt  # noqa: E402
from altair.utils.schemapi import debug_mode  # noqa: E402

# Each differs from white and the dark ground by a contrast of at least 3. Within that they are
# far from each other, also as people see them who do not tell red from green.
COLOURS = (
    "#2b7bd4", "#c8600a", "#188750", "#cf1887", "#a750ff", "#60979f",
    "#087087", "#bf78d7", "#f72058", "#d710cf", "#706830", "#cf2010",
)  # fmt: skip
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down")
DASHES = ((1, 0), (6, 3), (2, 3))
"""Of lines: solid, then one more for each time that the colours begin anew."""
NEUTRAL = "#8792a2"
"""For what is not one of our methods, such as the figures of a paper."""


@dataclass(frozen=True)
class Mark:
    """The look of one method."""

    colour: str
    shape: str
    dash: tuple[int, int] = DASHES[0]


OTHER = Mark(NEUTRAL, "circle", (5, 4))


class Palette(Mapping[str, Mark]):
    """The marks of all names on a page, in the order in which they were first given.

    >>> Palette(["FO", "RISE", "FO"])["RISE"]
    Mark(colour='#c8600a', shape='square', dash=(1, 0))
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._marks = {name: _mark(place) for place, name in enumerate(dict.fromkeys(names))}

    def __getitem__(self, name: str) -> Mark:
        return self._marks[name]

    def __iter__(self) -> Any:
        return iter(self._marks)

    def __len__(self) -> int:
        return len(self._marks)


def _mark(place: int) -> Mark:
    """When the colours begin anew, shapes go on by one, so that no pair comes again."""
    again, first = divmod(place, len(COLOURS))
    shape = SHAPES[(first + again) % len(SHAPES)]
    return Mark(COLOURS[first], shape, DASHES[again % len(DASHES)])


FONT = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "Liberation Sans", sans-serif'
TEXT = {"light": "#17202b", "dark": "#e8edf3"}
SOFT = {"light": "#526073", "dark": "#a5b2c2"}
LINES = {"light": "#e3e8ee", "dark": "#2b3440"}
SMALL_TEXT = 16.0
"""Pixels, of a figure that is shown smaller than it was drawn."""
GROUND = {"light": "#ffffff", "dark": "#12161c"}


def config(scheme: str, size: float = 12.5) -> dict[str, Any]:
    """Vega-Lite's ``config`` for ``light`` or ``dark`` with text of ``size`` pixels."""
    text, soft, line = TEXT[scheme], SOFT[scheme], LINES[scheme]
    return {
        "background": GROUND[scheme],
        "font": FONT,
        "fontSize": {"guideLabel": size, "guideTitle": size, "text": size, "groupTitle": size},
        "padding": 4,
        "view": {"stroke": None},
        "axis": {
            "labelColor": soft,
            "titleColor": text,
            "titleFontWeight": "normal",
            "gridColor": line,
            "domainColor": line,
            "tickColor": line,
            "labelPadding": 6,
            "labelOverlap": "greedy",
            "labelFlush": False,
        },
        "legend": {
            "orient": "bottom",
            "title": None,
            "labelColor": text,
            "titleColor": text,
            "titleFontWeight": "normal",
            "columns": 3,
            "labelLimit": 260,
            "symbolSize": 90,
            "symbolOpacity": 1,
            "symbolStrokeWidth": 0,  # dashes are for lines; around a symbol they look frayed
            "rowPadding": 4,
        },
        "header": {"labelColor": text, "title": None, "labelLimit": 210, "labelPadding": 6},
        "text": {"color": text},
        "rule": {"color": soft},
        "style": {
            "halo": {"fill": GROUND[scheme], "stroke": GROUND[scheme], "strokeWidth": 4},
            "label": {"fill": text},
        },
    }


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


def specification(chart: AnyChart) -> dict[str, Any]:
    """Vega-Lite as plain data, without looks."""
    with debug_mode(False):
        found: dict[str, Any] = chart.to_dict(validate=False)
    return {key: value for key, value in found.items() if key not in {"config", "$schema"}}


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
    marks = [palette.get(name, OTHER) for name in names]
    colours = alt.Scale(domain=_shown(names), range=[mark.colour for mark in marks])
    shapes = alt.Scale(domain=_shown(names), range=[mark.shape for mark in marks])
    return alt.Color("method:N", scale=colours), alt.Shape("method:N", scale=shapes)


def dashes(names: Sequence[str], palette: Palette) -> alt.StrokeDash:
    """Of the lines of the field ``method``: what tells them apart where colours begin anew."""
    found = [list(palette.get(name, OTHER).dash) for name in names]
    return alt.StrokeDash("method:N", scale=alt.Scale(domain=_shown(names), range=found))


def _shown(names: Sequence[str]) -> list[str]:
    return [visible(name) for name in names]


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


@dataclass(frozen=True)
class SeriesPoint:
    """A place of a line: mean and deviation over seeds; ``method`` gives the line its look."""

    method: str
    line: str
    x: float
    mean: float
    sd: float | None
    tip: str


FEW = 8
"""With more lines than this, bands would cover each other."""


@debug_mode(False)  # checked by the tests
def stream(points: Sequence[SeriesPoint], palette: Palette, title: str) -> AnyChart:
    """A line for each row over the sessions, with a band of one deviation if they are few."""
    within = domain(_reach(points), 0, 100)
    last = max(int(p.x) for p in points)
    axis = across("Session: tasks seen so far")
    axis.values, axis.format = list(range(1, last + 1, -(-last // 12))), "d"
    x = alt.X("x:Q", scale=linear([1, max(last, 2)]), axis=axis)
    y = alt.Y("mean:Q", scale=linear(within), axis=upward(title))
    names = list(dict.fromkeys(p.method for p in points))
    colour, shape = by_method(names, palette)
    base = alt.Chart(ROWS).encode(x, colour, alt.Detail("line:N"))
    band = base.mark_area(aria=False).encode(
        alt.Y("low:Q", scale=linear(within), axis=upward(title)), alt.Y2("high:Q"),
        emphasis(0.12, 0.0),
    )  # fmt: skip
    lines = base.mark_line(strokeWidth=2, aria=False)
    lines = lines.encode(y, dashes(names, palette), emphasis(0.9, 0.08))
    marks = base.mark_point(filled=True, size=POINT).encode(y, shape, emphasis(0.9, 0.08), **tip())
    layers = [band, lines] if len({p.line for p in points}) <= FEW else [lines]
    chart = alt.layer(*layers, marks.add_params(picking()))
    rows = _series_rows(points, within)
    return with_data(chart.properties(width=WIDTH, height=HEIGHT), rows=rows)


def _reach(points: Iterable[SeriesPoint]) -> list[float]:
    return [p.mean + sign * (p.sd or 0.0) for p in points for sign in (-1, 1)]


def _series_rows(
    points: Iterable[SeriesPoint], within: Sequence[float]
) -> Iterator[dict[str, Any]]:
    for p in points:
        low, high = ends(p.mean, p.sd, within)
        yield {**vars(p), "low": low, "high": high}


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
    map_of_one = alt.layer(*layers, data=ROWS).properties(width=200, height=200)
    return with_data(map_of_one.facet(facet=row, columns=3), rows=rows)
