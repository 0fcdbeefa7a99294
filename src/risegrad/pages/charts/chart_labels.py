"""Names beside their points, where they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from risegrad.pages.charts.chart_axes import HEIGHT, WIDTH, AnyChart

LAYER = "labels"
NARROW = 300
"""Pixels of a plot on a phone, for which labels have places of their own."""
CHARACTER, LINE, GAP = 6.6, 12.0, 9.0
"""Pixels: the mean width of a letter, its height, and how far a name stands off its point."""
LONGEST = 34


@dataclass(frozen=True)
class LabelPlace:
    """Where a label stands, in pixels from its point."""

    align: str
    dx: float
    dy: float


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


# Beside a point run the lines of its deviations: the corners come first.
SIDES = (
    LabelPlace("left", GAP - 2, -GAP + 1), LabelPlace("left", GAP - 2, GAP + 8),
    LabelPlace("right", -GAP + 2, -GAP + 1), LabelPlace("right", -GAP + 2, GAP + 8),
    LabelPlace("left", GAP, 4), LabelPlace("right", -GAP, 4),
    LabelPlace("center", 0, -GAP), LabelPlace("center", 0, GAP + 9),
    LabelPlace("right", GAP, -GAP - 6), LabelPlace("left", -GAP, GAP + 16),
)  # fmt: skip


def places(
    wanted: Sequence[tuple[str, float, float]],
    others: Sequence[tuple[float, float]],
    width: float = WIDTH,
) -> list[LabelPlace | None]:
    """For each (name, x, y) a side on which it covers neither a point nor a name; None if none is.

    ``x`` and ``y`` are parts of the plot's ``width`` and height, ``y`` upward; ``others`` are
    points that have no name.
    """
    plot = _Box(0, -8, width - 30 * (width == WIDTH), HEIGHT)
    points = [_point(x, y, plot) for _, x, y in wanted] + [_point(x, y, plot) for x, y in others]
    taken: list[_Box] = []
    found: list[LabelPlace | None] = []
    for name, x, y in wanted:
        mine = _point(x, y, plot)
        busy = [box for box in points if box != mine] + taken
        boxes = ((side, _label(name, x, y, side, plot)) for side in SIDES)
        place, box = next((one for one in boxes if _free(one[1], busy, plot)), (None, None))
        found.append(place)
        if box:
            taken.append(box)
    return found


def _free(box: _Box, busy: Sequence[_Box], plot: _Box) -> bool:
    inside = box.left >= plot.left and box.right <= plot.right
    inside = inside and box.top >= plot.top and box.bottom <= plot.bottom
    return inside and not any(box.meets(other) for other in busy)


def _point(x: float, y: float, plot: _Box) -> _Box:
    left, top = x * plot.right, (1 - y) * HEIGHT
    return _Box(left - 6, top - 6, left + 6, top + 6)


def _label(name: str, x: float, y: float, side: LabelPlace, plot: _Box) -> _Box:
    width = CHARACTER * min(len(name), LONGEST)
    start = {"left": 0.0, "right": -width, "center": -width / 2}[side.align]
    left, bottom = x * plot.right + side.dx + start, (1 - y) * HEIGHT + side.dy + 2
    return _Box(left, bottom - LINE, left + width, bottom)


def label_row(name: str, x: float, y: float, side: LabelPlace, weight: int) -> dict[str, Any]:
    """One label as data of the chart."""
    short = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    return {"name": short, "x": x, "y": y, "weight": weight, "align": side.align, "dx": side.dx,
            "dy": side.dy}  # fmt: skip


def label_layer(x: alt.X, y: alt.Y) -> AnyChart:
    """Text at ``x`` and ``y``, aligned and shifted as each row of the data ``labels`` says.

    Twice: the first, in the colour of the ground and wider, keeps lines away from the letters.
    """

    def of(field: str) -> alt.ExprRef:
        return alt.ExprRef(expr=f"datum.{field}")

    mark: dict[str, Any] = {key: of(key) for key in ("align", "dx", "dy")}
    base = alt.Chart(alt.NamedData(name=LAYER)).encode(x=x, y=y, text=alt.Text("name:N"))
    base = base.transform_filter(f"datum.narrow === (width < {1.5 * NARROW})")
    texts = (
        base.mark_text(
            baseline="alphabetic", aria=False, style=style, fontWeight=of("weight"), **mark
        )
        for style in ("halo", "label")
    )
    return alt.layer(*texts, name=LAYER)
