"""Forgetting against learning: a curve for each method over its sweep, or a point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
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

LEARNED = "Learned: new-task accuracy (%), higher is better →"
FORGOTTEN = "Forgotten: points lost, lower is better ↓"
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
    points: Sequence[FrontierPoint], palette: Palette, bands: Sequence[FrontierBand] = ()
) -> AnyChart:
    """``points`` of one method come together, in the order of its sweep; so do its ``bands``."""
    x_ends = domain(_reach(points, "learned"), 0, 100)
    # A deviation that reaches below zero is cut there: no axis for what nobody measured.
    least = 0.0 if all(p.forgotten >= 0 for p in points) else -100.0
    y_ends = domain(_from_zero(list(_reach(points, "forgotten"))), least, 100)
    x = alt.X("x:Q", scale=linear(x_ends), axis=across(LEARNED))
    y = alt.Y("y:Q", scale=linear(y_ends), axis=upward(FORGOTTEN))
    low = alt.Y("low:Q", scale=linear(y_ends), axis=upward(FORGOTTEN))
    names = list(dict.fromkeys(p.method for p in points))
    colour, shape = by_method(names, palette)
    base = alt.Chart(ROWS)
    bars = base.mark_rule(strokeWidth=1.4, aria=False)
    layers: list[Any] = [
        base.mark_line(strokeWidth=2, aria=False).encode(
            x, y, colour, dashes(names, palette), emphasis(0.75, 0.08), alt.Order("order:Q"),
            alt.Detail("line:N")),
        bars.encode(alt.X("left:Q", scale=linear(x_ends)), y, colour,
                    emphasis(0.45, 0.05), alt.X2("right:Q")),
        bars.encode(x, low, colour, emphasis(0.45, 0.05), alt.Y2("high:Q")),
        base.mark_point(filled=True, size=POINT).encode(
            x, y, colour, shape, emphasis(None, 0.12), **tip()).add_params(picking()),
    ]  # fmt: skip
    data: dict[str, Any] = {"rows": _rows(points, x_ends, y_ends)}
    if bands:  # pale, because several lie over each other; a picked one alone is clear
        area = alt.Chart(alt.NamedData(name="bands")).mark_area(aria=False)
        layers.insert(0, area.encode(x, low, alt.Y2("high:Q"), colour, emphasis(0.06, 0.0)))
        data["bands"] = _band_rows(bands, y_ends)
    if labels := list(_labels(points, x_ends, y_ends)):
        layers.append(_label_layer(x, y))
        data["labels"] = labels
    return with_data(alt.layer(*layers).properties(width=WIDTH, height=HEIGHT), **data)


def _band_rows(bands: Sequence[FrontierBand], y_ends: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Cut where the axis ends, and left out where it would fill the axis: that says nothing."""
    for place in bands:
        low, high = max(place.low, y_ends[0]), min(place.high, y_ends[1])
        if low <= high and high - low < y_ends[1] - y_ends[0]:
            yield {"method": place.method, "x": place.learned, "low": low, "high": high}


def _from_zero(values: list[float]) -> list[float]:
    """With zero, unless the values are so far from it that they would look equal."""
    return [0.0, *values] if min(values) < max(values) - min(values) else values


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
            "low": low, "high": high, "order": order, "tip": p.tip,
            "line": p.line, "clear": 0.4 if p.idle else 1.0,
        }  # fmt: skip


NARROW = 300
"""Pixels of a plot on a phone, for which labels have places of their own."""
CHARACTER, LINE = 7.0, 13.0
"""Pixels: the mean width of a letter and the height of a line."""
LONGEST = 34
SIDES = (("left", 8, 4), ("right", -8, 4), ("left", 7, -8), ("right", -7, -8), ("left", 7, 17),
         ("right", -7, 17))  # fmt: skip
"""Where a label may stand: which end of it is at its point, and the shift in pixels from there."""
Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels, downward."""


def _labels(
    points: Sequence[FrontierPoint], x_ends: Sequence[float], y_ends: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """Names at the ends of curves, settings at points: each where it covers nothing, if anywhere.

    Few methods are named so; of many the legend tells.
    """
    curves = [list(curve) for _, curve in groupby(points, key=lambda p: p.method)]
    if len(curves) > FEW_METHODS:
        return
    for narrow, width in ((False, WIDTH - 30), (True, NARROW)):
        settings = not narrow and len(points) <= FEW_POINTS
        at = {id(p): (width * _part(p.learned, x_ends), HEIGHT * (1 - _part(p.forgotten, y_ends)))
              for p in points}  # fmt: skip
        taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in at.values()]
        named = [(c[-1], c[-1].method, c[-1].setting * settings) for c in curves if len(curves) > 1]
        ends = {id(point) for point, *_ in named}
        rest = [(p, "", p.setting) for p in points if settings and id(p) not in ends]
        for point, method, setting in (*named, *rest):
            both = ", ".join(filter(None, [method, setting]))
            for text, side in product(filter(None, dict.fromkeys((both, method))), SIDES):
                name = text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
                box = _box(name, at[id(point)], side)
                inside = box[0] >= 0 and box[1] >= -8 and box[2] <= width and box[3] <= HEIGHT
                if inside and not any(_meet(box, other) for other in taken):
                    taken.append(box)
                    yield {"name": name, "x": point.learned, "y": point.forgotten,
                           "align": side[0], "dx": side[1], "dy": side[2],
                           "weight": 600 if method else 400, "narrow": narrow}  # fmt: skip
                    break


def _box(name: str, at: tuple[float, float], side: tuple[str, int, int]) -> Box:
    width = CHARACTER * len(name)
    left, bottom = at[0] + side[1] - width * (side[0] == "right"), at[1] + side[2] + 2
    return left, bottom - LINE, left + width, bottom


def _meet(one: Box, other: Box) -> bool:
    """Whether they have an area in common."""
    beside = one[2] <= other[0] or other[2] <= one[0]
    return not (beside or one[3] <= other[1] or other[3] <= one[1])


def _part(value: float, within: Sequence[float]) -> float:
    return (value - within[0]) / (within[1] - within[0])


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
