"""Forgetting against learning: a curve for each method over its sweep, or a point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from riselab.pages.charts import (
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
from riselab.pages.looks import Palette

AXES = ("Learned: new-task accuracy (%), higher is better →",
        "Forgotten: points lost, lower is better ↓")  # fmt: skip
FEW_METHODS, FEW_POINTS = 6, 24
"""With more methods than this the legend alone names them; with more points no settings."""
BETTER = "Further right is more learned, lower is less forgotten."


@dataclass(frozen=True)
class FrontierPoint:
    """One setting of a method: means over seeds and their deviations."""

    method: str
    learned: float
    forgotten: float
    tip: str
    setting: str = ""
    """of the sweep, short enough to fit next to the point"""
    learned_sd: float | None = None
    forgotten_sd: float | None = None
    idle: bool = False
    """whether the model learned nothing: shown pale, because what it keeps says nothing"""
    line: str = ""
    """which of its method's lines it is on, where there are several"""


@dataclass(frozen=True)
class FrontierBand:
    """The interval around a method's curve at one amount of learning."""

    method: str
    learned: float
    low: float
    high: float


@debug_mode(False)  # checked by the tests
def frontier(
    points: Sequence[FrontierPoint],
    palette: Palette,
    bands: Sequence[FrontierBand] = (),
    axes: tuple[str, str] = AXES,
    *,
    ratios: bool = False,
    small: bool = False,
) -> AnyChart:
    """``points`` of one method come together, in the order of its sweep; so do its ``bands``.

    With ``ratios``, equal ratios of forgetting are equal distances, if all are above zero.

    A ``small`` chart is for a column as narrow as a phone: it has larger text, names its methods
    beside their curves and has no legend.
    """
    x_ends = domain(_reach(points, "learned"), 0, 100)
    # A deviation that reaches below zero is cut there: no axis for what nobody measured.
    least = 0.0 if all(p.forgotten >= 0 for p in points) else -100.0
    y_ends = domain(_from_zero(list(_reach(points, "forgotten"))), least, 100)
    y_scale = linear(y_ends)
    if ratios := ratios and all(p.forgotten > 0 for p in points):
        y_ends = _around([p.forgotten for p in points])
        y_scale = alt.Scale(type="log", domain=y_ends, nice=False)
    x = alt.X("x:Q", scale=linear(x_ends), axis=across(axes[0]))
    y_axis = upward(axes[1])
    if ratios:
        y_axis.values = [tick for tick in _rounds() if y_ends[0] <= tick <= y_ends[1]]
    y = alt.Y("y:Q", scale=y_scale, axis=y_axis)
    low = alt.Y("low:Q", scale=y_scale, axis=y_axis)
    names = list(dict.fromkeys(p.method for p in points))
    colour, shape = by_method(names, palette)
    if small:
        colour, shape = colour.legend(None), shape.legend(None)
    base = alt.Chart(ROWS)
    bars = base.mark_rule(strokeWidth=1.4, aria=False)
    joined = alt.Chart(alt.NamedData(name="lines")) if ratios else base
    layers: list[Any] = [
        joined.mark_line(strokeWidth=2, aria=False).encode(
            x, y, colour, dashes(names, palette), emphasis(0.75, 0.08), alt.Order("order:Q"),
            alt.Detail("line:N")),
        bars.encode(alt.X("left:Q", scale=linear(x_ends)), y, colour,
                    emphasis(0.45, 0.05), alt.X2("right:Q")),
        bars.encode(x, low, colour, emphasis(0.45, 0.05), alt.Y2("high:Q")),
        base.mark_point(filled=True, size=POINT).encode(
            x, y, colour, shape, emphasis(None, 0.12), **tip()).add_params(picking()),
    ]  # fmt: skip
    data: dict[str, Any] = {"rows": _rows(points, x_ends, y_ends)}
    if ratios:
        data["lines"] = _line_rows(points)
    if bands:  # pale, because several lie over each other; a picked one alone is clear
        area = alt.Chart(alt.NamedData(name="bands")).mark_area(aria=False)
        layers.insert(0, area.encode(x, low, alt.Y2("high:Q"), colour, emphasis(0.06, 0.0)))
        data["bands"] = _band_rows(bands, y_ends)
    if labels := list(_labels(points, x_ends, y_ends, ratios, small)):
        layers.append(_label_layer(x, y))
        data["labels"] = labels
    size = SMALL if small else (WIDTH, HEIGHT)
    return with_data(alt.layer(*layers).properties(width=size[0], height=size[1]), **data)


def _band_rows(bands: Sequence[FrontierBand], y_ends: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Cut where the axis ends, and left out where it would fill the axis: that says nothing."""
    for place in bands:
        low, high = max(place.low, y_ends[0]), min(place.high, y_ends[1])
        if low <= high and high - low < y_ends[1] - y_ends[0]:
            yield {"method": place.method, "x": place.learned, "low": low, "high": high}


def _from_zero(values: list[float]) -> list[float]:
    """With zero, unless the values are so far from it that they would look equal."""
    return [0.0, *values] if min(values) < max(values) - min(values) else values


def _rounds() -> Iterator[float]:
    """1, 2 and 5 times powers of ten."""
    return (digit * 10.0**power for power in range(-6, 3) for digit in (1, 2, 5))


def _around(values: Sequence[float]) -> list[float]:
    """Round ends around values above zero, with room for marks.

    >>> _around([0.012, 1.65])
    [0.01, 2.0]
    """
    low = max((tick for tick in _rounds() if tick <= 0.95 * min(values)), default=1e-6)
    high = min((tick for tick in _rounds() if tick >= 1.05 * max(values)), default=1e3)
    return [low, high]


def _reach(points: Sequence[FrontierPoint], of: str) -> Iterator[float]:
    for point in points:
        mean, sd = getattr(point, of), getattr(point, f"{of}_sd") or 0.0
        yield from (mean - sd, mean + sd)


def _rows(
    points: Sequence[FrontierPoint], x_ends: Sequence[float], y_ends: Sequence[float]
) -> Iterator[dict[str, Any]]:
    for order, p in enumerate(points):
        left, right = ends(p.learned, p.learned_sd, x_ends)
        low, high = ends(p.forgotten, p.forgotten_sd, y_ends)
        yield {
            "method": p.method, "x": p.learned, "y": p.forgotten, "left": left, "right": right,
            "low": low, "high": high, "order": order, "tip": p.tip, "line": p.line,
            "clear": 0.4 if p.idle else 1.0,
        }  # fmt: skip


SMALL = (400, 300)
PLACES = 8
"""Of a line between two points: where curves are read, which an axis of ratios bends."""


def _line_rows(points: Sequence[FrontierPoint]) -> list[dict[str, Any]]:
    lines: dict[tuple[str, str], list[FrontierPoint]] = {}
    for p in points:
        lines.setdefault((p.method, p.line), []).append(p)
    found: list[dict[str, Any]] = []
    for (method, line), ps in lines.items():
        places = [(p.learned, p.forgotten) for p in ps]
        between = [
            (x + step / PLACES * (to_x - x), y + step / PLACES * (to_y - y))
            for (x, y), (to_x, to_y) in pairwise(places)
            for step in range(PLACES)
        ]
        for x, y in (*between, places[-1]):
            found.append({"method": method, "line": line, "x": x, "y": y, "order": len(found)})
    return found


NARROW = 300
"""Pixels of a plot on a phone, for which labels have places of their own."""
CHARACTER, LINE = 7.0, 13.0
"""Pixels: the mean width of a letter and the height of a line."""
LARGER = 1.3
"""Text in a small chart."""
LONGEST = 34
SIDES = (("left", 8, 4), ("right", -8, 4), ("left", 7, -8), ("right", -7, -8), ("left", 7, 17),
         ("right", -7, 17))  # fmt: skip
"""Where a label may stand: which end of it is at its point, and the shift in pixels from there."""
Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels, downward."""


def _labels(
    points: Sequence[FrontierPoint],
    x_ends: Sequence[float],
    y_ends: Sequence[float],
    ratios: bool,
    small: bool,
) -> Iterator[dict[str, Any]]:
    """Names at the ends of curves, settings at points: each where it covers nothing, if anywhere.

    Few methods are named so; of many the legend tells.
    """
    curves = [list(curve) for _, curve in groupby(points, key=lambda p: p.method)]
    if len(curves) > FEW_METHODS:
        return
    height, letters = (SMALL[1], LARGER) if small else (HEIGHT, 1.0)
    scale = math.log if ratios else float
    ground, top = scale(y_ends[0]), scale(y_ends[1])
    for narrow, width in ((True, SMALL[0]),) if small else ((False, WIDTH - 30), (True, NARROW)):
        settings = not narrow and len(points) <= FEW_POINTS
        at = {id(p): (width * (p.learned - x_ends[0]) / (x_ends[1] - x_ends[0]),
                      height * (top - scale(p.forgotten)) / (top - ground))
              for p in points}  # fmt: skip
        taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in at.values()]
        named = [(c[-1], c[-1].method, c[-1].setting * settings) for c in curves if len(curves) > 1]
        ends = {id(point) for point, *_ in named}
        rest = [(p, "", p.setting) for p in points if settings and id(p) not in ends]
        for point, method, setting in (*named, *rest):
            both = ", ".join(filter(None, [method, setting]))
            for text, side in product(filter(None, dict.fromkeys((both, method))), SIDES):
                name = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
                box = _box(name, at[id(point)], side, letters)
                inside = box[0] >= 0 and box[1] >= -8 and box[2] <= width and box[3] <= height
                if inside and not any(_meet(box, other) for other in taken):
                    taken.append(box)
                    yield {"name": name, "x": point.learned, "y": point.forgotten,
                           "align": side[0], "dx": side[1], "dy": side[2],
                           "weight": 600 if method else 400, "narrow": narrow}  # fmt: skip
                    break


def _box(name: str, at: tuple[float, float], side: tuple[str, int, int], letters: float) -> Box:
    width = CHARACTER * letters * len(name)
    left, bottom = at[0] + side[1] - width * (side[0] == "right"), at[1] + side[2] + 2
    return left, bottom - LINE * letters, left + width, bottom


def _meet(one: Box, other: Box) -> bool:
    """Whether they have an area in common."""
    beside = one[2] <= other[0] or other[2] <= one[0]
    return not (beside or one[3] <= other[1] or other[3] <= one[1])


def _label_layer(x: alt.X, y: alt.Y) -> Any:
    """Text at ``x`` and ``y``, aligned and shifted as each row of the data ``labels`` says.

    Twice: the first, in the colour of the ground and wider, keeps lines away from the letters.
    """

    def of(field: str) -> alt.ExprRef:
        return alt.ExprRef(expr=f"datum.{field}")

    mark: dict[str, Any] = {key: of(key) for key in ("align", "dx", "dy")}
    base = alt.Chart(alt.NamedData(name="labels")).encode(x=x, y=y, text=alt.Text("name:N"))
    base = base.transform_filter(f"datum.narrow === (width < {1.5 * NARROW})")
    texts = (
        base.mark_text(
            baseline="alphabetic", aria=False, style=style, fontWeight=of("weight"), **mark
        )
        for style in ("halo", "label")
    )
    return alt.layer(*texts, name="labels")
