"""What all plots with axes share: frame, grid, marks that differ in colour and in shape.

Sizes are in units of the view box, small enough that text stays readable on a phone. Colours are
classes ``s0`` to ``s7``, which the style sheet defines for light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from risegrad.lab.report.markup import Markup, joined, tag
from risegrad.lab.report.plots.scale import Scale
from risegrad.lab.report.text import number

WIDTH, HEIGHT = 400.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 390.0, 12.0, 246.0
COLOURS = 8
READING = "The numbers are in the table below; arrow keys read them out."


@dataclass(frozen=True)
class Mark:
    """A point that can be pointed at; the arrow keys move along ``line`` and across ``column``."""

    x: float
    y: float
    tip: str
    line: int
    column: int


def series_class(index: int) -> str:
    return f"s{index % COLOURS}"


def canvas(*children: Markup | None, words: str, kind: str) -> Markup:
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        tabindex="0",
        aria_label=f"{words} {READING}",
        class_=f"plot {kind}",
    )


def frame(x: Scale, y: Scale, x_title: str, y_title: str) -> Markup:
    """Grid, tick labels and titles; decoration for a screen reader, which has the table."""
    middle = (TOP + BOTTOM) / 2
    turned = f"rotate(-90 12 {middle:g})"
    return tag(
        "g",
        *(_x_tick(x, value) for value in x.ticks),
        *(_y_tick(y, value) for value in y.ticks),
        tag("text", x_title, x=(LEFT + RIGHT) / 2, y=HEIGHT - 10, class_="title"),
        tag("text", y_title, x=12.0, y=middle, transform=turned, class_="title"),
        class_="axes",
        aria_hidden="true",
    )


def _x_tick(scale: Scale, value: float) -> Markup:
    at = scale(value)
    return joined(
        tag("line", x1=at, x2=at, y1=TOP, y2=BOTTOM),
        tag("text", f"{value:g}", x=at, y=BOTTOM + 16, class_="x"),
    )


def _y_tick(scale: Scale, value: float) -> Markup:
    at = scale(value)
    return joined(
        tag("line", x1=LEFT, x2=RIGHT, y1=at, y2=at),
        tag(
            "text", number(value, 0 if value == int(value) else 1), x=LEFT - 6, y=at + 4, class_="y"
        ),
    )


def mark(found: Mark, index: int) -> Markup:
    """A shape of the series, and a ring that shows when the mark is being read."""
    return tag(
        "g",
        tag("circle", cx=found.x, cy=found.y, r=11.0, class_="ring"),
        shape(found.x, found.y, index),
        class_="mark",
        data_tip=found.tip,
        data_line=str(found.line),
        data_column=str(found.column),
    )


def series(index: int, *children: Markup | None) -> Markup:
    return tag("g", *children, class_=f"series {series_class(index)}", data_series=str(index))


def path(points: Sequence[tuple[float, float]], closed: bool = False) -> str:
    text = "L".join(f"{x:.2f} {y:.2f}" for x, y in points)
    return f"M{text}{'Z' if closed else ''}"


OUTLINES: dict[int, list[tuple[float, float]]] = {
    1: [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    2: [(0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)],
    3: [(0, -1.3), (1.25, 0.95), (-1.25, 0.95)],
}


def shape(x: float, y: float, index: int, size: float = 5.0) -> Markup:
    """Circle, square, diamond, triangle, then hollow: more combinations than eight colours."""
    hollow = "hollow" if (index // 4) % 2 else "solid"
    if index % 4 == 0:
        return tag("circle", cx=x, cy=y, r=size, class_=f"shape {hollow}")
    points = [(x + 0.9 * size * dx, y + 0.9 * size * dy) for dx, dy in OUTLINES[index % 4]]
    return tag("path", d=path(points, closed=True), class_=f"shape {hollow}")
