"""Forgetting against learning: a curve for each method over its sweep, or a point."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from riselab.pages.charts import (
    HEIGHT,
    POINT,
    ROWS,
    WIDTH,
    AnyChart,
    Palette,
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
    x = alt.X("x:Q", scale=linear(x_ends), axis=across(axes[0]))
    ratios = ratios and all(p.forgotten > 0 for p in points)
    y_ends, y_scale, y_axis = _up(points, axes[1], ratios)
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
    size, scale = SMALL if small else (WIDTH, HEIGHT), math.log if ratios else float
    each = size[1] / (scale(y_ends[1]) - scale(y_ends[0]))
    labels = _labels(
        points, x_ends, lambda y: each * (scale(y) - scale(y_ends[0])), LINE * (1.3 if small else 1)
    )
    if found := list(labels):
        data["labels"] = found
        layers.append(_label_layer(x, y))
    return with_data(alt.layer(*layers).properties(width=size[0], height=size[1]), **data)


def _up(points: Sequence[FrontierPoint], title: str, ratios: bool) -> tuple[list[float], Any, Any]:
    """The ends, scale and axis of what was forgotten."""
    axis = upward(title)
    if ratios:
        ends = _around([p.forgotten for p in points])
        axis.values = [tick for tick in _rounds() if ends[0] <= tick <= ends[1]]
        return ends, alt.Scale(type="log", domain=ends, nice=False), axis
    # A deviation that reaches below zero is cut there: no axis for what nobody measured.
    least = 0.0 if all(p.forgotten >= 0 for p in points) else -100.0
    ends = domain(_from_zero(list(_reach(points, "forgotten"))), least, 100)
    return ends, linear(ends), axis


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


LINE = 15.0
"""Pixels: the height of a line of text, with some room."""
LONGEST = 34


def _labels(
    points: Sequence[FrontierPoint],
    within: Sequence[float],
    height: Callable[[float], float],
    line: float,
) -> Iterator[dict[str, Any]]:
    """The name of each of a few methods at the end of its curve; of one alone, its settings.

    ``height`` gives the pixels above the axis. Names on one side of the chart keep a ``line`` from
    each other; of many methods the legend tells.
    """
    curves = [list(curve) for _, curve in groupby(points, key=lambda p: p.method)]
    named = [(curve[-1], curve[-1].method) for curve in curves]
    if len(curves) == 1 and len(points) <= FEW_POINTS:
        named = [(p, p.setting) for p in points]
    taken: dict[str, list[float]] = {"left": [], "right": []}
    for p, name in sorted(named, key=lambda one: -height(one[0].forgotten)):
        if not name or len(curves) > FEW_METHODS:
            continue
        side = "right" if p.learned > sum(within) / 2 else "left"
        at = height(p.forgotten)
        if len(curves) > 1:  # above the curve, which most often comes from below
            at = min([at + line / 2, *(other - line for other in taken[side])])
        taken[side].append(at)
        yield {
            "name": name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…",
            "x": p.learned, "y": p.forgotten, "align": side, "dx": -9 if side == "right" else 9,
            "dy": 4 + height(p.forgotten) - at, "weight": 600 if len(curves) > 1 else 400,
        }  # fmt: skip


def _label_layer(x: alt.X, y: alt.Y) -> Any:
    """Text at ``x`` and ``y``, aligned and shifted as each row of the data ``labels`` says.

    Twice: the first, in the colour of the ground and wider, keeps lines away from the letters.
    """

    def of(field: str) -> alt.ExprRef:
        return alt.ExprRef(expr=f"datum.{field}")

    mark: dict[str, Any] = {key: of(key) for key in ("align", "dx", "dy")}
    base = alt.Chart(alt.NamedData(name="labels")).encode(x=x, y=y, text=alt.Text("name:N"))
    texts = (
        base.mark_text(
            baseline="alphabetic", aria=False, style=style, fontWeight=of("weight"), **mark
        )
        for style in ("halo", "label")
    )
    return alt.layer(*texts, name="labels")
