"""Forgetting against learning: a curve for each method over its sweep, or a point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import altair as alt
from altair.utils.schemapi import debug_mode

from risegrad.pages.charts.chart_axes import (
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
from risegrad.pages.charts.chart_labels import label_layer, label_row, leader_layer
from risegrad.pages.charts.label_places import NARROW, places
from risegrad.pages.palette import Palette

LEARNED = "Learned: new-task accuracy (%), higher is better →"
FORGOTTEN = "Forgotten: points lost, lower is better ↓"
FEW = 30
"""With more points than this, only methods are named, not their settings."""
BETTER = "Right and low is better: it learned more and forgot less."


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
    baseline: bool = False
    """whether others are compared with it: then its name comes first"""


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
    names = list(dict.fromkeys(p.method for p in points))
    colour, shape = by_method(names, palette)
    base = alt.Chart(ROWS)
    marks = base.mark_point(filled=True, size=POINT).encode(
        x, y, colour, shape, emphasis(None, 0.12), **tip()
    )
    bars = base.mark_rule(strokeWidth=1.4, aria=False)
    chart = alt.layer(
        *([_band_layer(x, y_ends, colour)] if bands else []),
        base.mark_line(strokeWidth=2, aria=False).encode(
            x, y, colour, dashes(names, palette), emphasis(0.75, 0.08), alt.Order("order:Q"),
            alt.Detail("line:N")),
        bars.encode(alt.X("left:Q", scale=linear(x_ends)), y, colour,
                    emphasis(0.45, 0.05), alt.X2("right:Q")),
        bars.encode(x, alt.Y("low:Q", scale=linear(y_ends)), colour,
                    emphasis(0.45, 0.05), alt.Y2("high:Q")),
        leader_layer(x, y),
        marks.add_params(picking()),
        label_layer(x, y),
    ).properties(width=WIDTH, height=HEIGHT)  # fmt: skip
    rows, labels = _rows(points, x_ends, y_ends), _labels(points, x_ends, y_ends)
    more = {"bands": _band_rows(bands, y_ends)} if bands else {}
    return with_data(chart, rows=rows, labels=labels, **more)


def _band_layer(x: alt.X, y_ends: Sequence[float], colour: alt.Color) -> Any:
    """Pale, because several lie over each other; a picked one alone is clear."""
    base = alt.Chart(alt.NamedData(name="bands"))
    low = alt.Y("low:Q", scale=linear(y_ends), axis=upward(FORGOTTEN))
    return base.mark_area(aria=False).encode(x, low, alt.Y2("high:Q"), colour, emphasis(0.06, 0.0))


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


def _named_at(
    curve: Sequence[FrontierPoint],
    curves: Sequence[Sequence[FrontierPoint]],
    at: Callable[[FrontierPoint], tuple[float, float]],
) -> FrontierPoint:
    """Where a method's name goes: the end of its curve, or where there is room along it."""
    others = [at(p) for other in curves if other is not curve for p in other]
    along = [curve[-1], curve[0], *curve[1:-1]]
    return next((p for p in along if places([(p.method, *at(p))], others)[0]), curve[-1])


def _first(curve: Sequence[FrontierPoint]) -> tuple[bool, float]:
    """Whose name is placed first where room is short: what others are compared with, then those
    that did best. They are what people look for."""
    return not any(p.baseline for p in curve), curve[-1].forgotten - curve[-1].learned


def _labels(
    points: Sequence[FrontierPoint], x_ends: Sequence[float], y_ends: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """The name of a method is at the end of its curve; settings at the other points, if few."""

    def at(p: FrontierPoint) -> tuple[float, float]:
        return _part(p.learned, x_ends), _part(p.forgotten, y_ends)

    curves = [list(curve) for _, curve in groupby(points, key=lambda p: p.method)]
    alone = len(curves) == 1
    ended = [] if alone else [_named_at(c, curves, at) for c in sorted(curves, key=_first)]
    first = [(p, p.method) for p in ended]
    named = set(map(id, ended))
    rest = [(p, p.setting) for curve in curves for p in curve if id(p) not in named]
    wanted = [*first, *(rest if len(points) <= FEW else [])]
    left = [] if len(points) <= FEW else [p for p, _ in rest]

    # On a phone there is room for the names of methods at most.
    phone = (first, [p for p, _ in rest], NARROW)
    for names, others, width in ((wanted, left, WIDTH), phone):
        given = [(name, *at(p)) for p, name in names]
        found = places(given, [at(p) for p in others], width, len(first))
        for (p, name), side in zip(names, found, strict=True):
            if side and name:
                lead = side.lead and (_value(side.lead[0], x_ends), _value(side.lead[1], y_ends))
                weight = 600 if name == p.method else 400
                row = label_row(name, (p.learned, p.forgotten), side, weight, lead)
                yield row | {"narrow": width == NARROW}


def _value(part: float, within: Sequence[float]) -> float:
    return within[0] + part * (within[1] - within[0])


def _part(value: float, within: Sequence[float]) -> float:
    return (value - within[0]) / (within[1] - within[0])
