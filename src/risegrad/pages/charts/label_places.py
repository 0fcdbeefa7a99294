"""Where names stand: beside their points, else in a free place with a thin line to the point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from risegrad.pages.charts.chart_axes import HEIGHT, WIDTH

NARROW = 300
"""Pixels of a plot on a phone, for which labels have places of their own."""
CHARACTER, LINE, GAP = 6.6, 12.5, 9.0
"""Pixels: the mean width of a letter, its height, and how far a name stands off its point."""
LONGEST = 34
RINGS, DIRECTIONS = range(20, 320, 10), 32
"""Pixels from a point to names that have no room beside it, and how many places on each ring."""

TRIES, LEADING = 60, 18
"""In how many orders names are placed, where one finds no place; and how many may stand apart: more
would be a wood of lines, and take seconds to place."""


@dataclass(frozen=True)
class LabelPlace:
    """Where a label stands, in pixels from its point."""

    align: str
    dx: float
    dy: float
    lead: tuple[float, float] | None = None
    """where its line ends, in parts of the plot; then the pixels count from there"""


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels, downward."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether they have an area in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def holds(self, other: Box) -> bool:
        """Whether the other is all inside."""
        return (
            self.left <= other.left
            and other.right <= self.right
            and self.top <= other.top
            and other.bottom <= self.bottom
        )


@dataclass(frozen=True)
class Leader:
    """The straight line from a point to its name."""

    x: float
    y: float
    to_x: float
    to_y: float

    def meets(self, box: Box) -> bool:
        """Whether it passes through, looked at every few pixels."""
        (left, right), (top, bottom) = sorted((self.x, self.to_x)), sorted((self.y, self.to_y))
        if right < box.left or box.right < left or bottom < box.top or box.bottom < top:
            return False
        steps = max(2, int(math.hypot(self.to_x - self.x, self.to_y - self.y) / 3))
        for step in range(1, steps):
            x = self.x + (self.to_x - self.x) * step / steps
            y = self.y + (self.to_y - self.y) * step / steps
            if box.left < x < box.right and box.top < y < box.bottom:
                return True
        return False

    def crosses(self, other: Leader) -> bool:
        """Whether each has its ends on different sides of the other."""
        return self._parts(other) and other._parts(self)

    def _parts(self, other: Leader) -> bool:
        return self._side(other.x, other.y) * self._side(other.to_x, other.to_y) < 0

    def _side(self, x: float, y: float) -> float:
        return (self.to_x - self.x) * (y - self.y) - (self.to_y - self.y) * (x - self.x)


# Beside a point run the lines of its deviations: the corners come first.
SIDES = (
    LabelPlace("left", GAP - 2, -GAP + 1), LabelPlace("left", GAP - 2, GAP + 8),
    LabelPlace("right", -GAP + 2, -GAP + 1), LabelPlace("right", -GAP + 2, GAP + 8),
    LabelPlace("left", GAP, 4), LabelPlace("right", -GAP, 4),
    LabelPlace("center", 0, -GAP), LabelPlace("center", 0, GAP + 9),
    LabelPlace("right", GAP, -GAP - 6), LabelPlace("left", -GAP, GAP + 16),
)  # fmt: skip
Wanted = tuple[str, float, float]
"""A name, and its point in parts of the plot's width and height, upward."""


@dataclass
class _Plot:
    """What is taken already."""

    area: Box
    points: list[Box]
    labels: list[Box] = field(default_factory=list)
    leaders: list[Leader] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Parts as pixels."""
        return x * self.area.right, (1 - y) * HEIGHT

    def parts(self, x: float, y: float) -> tuple[float, float]:
        """Pixels as parts."""
        return x / self.area.right, 1 - y / HEIGHT

    def free(self, box: Box, own: Box) -> bool:
        """Whether a name may stand there; its own point does not count."""
        if not self.area.holds(box) or any(box.meets(label) for label in self.labels):
            return False
        if any(box.meets(point) for point in self.points if point != own):
            return False
        return not any(leader.meets(box) for leader in self.leaders)

    def clear(self, leader: Leader, own: Box, strict: int) -> bool:
        """Whether a line may go there: never over names, and where there is another way neither
        over lines (``strict`` 1) nor points (2)."""
        if any(map(leader.meets, self.labels)):
            return False
        if strict >= 1 and any(map(leader.crosses, self.leaders)):
            return False
        return strict < 2 or not any(leader.meets(p) for p in self.points if p != own)

    @property
    def strain(self) -> float:
        """The length of all lines together."""
        return sum(math.hypot(one.to_x - one.x, one.to_y - one.y) for one in self.leaders)

    def beside(self, wanted: Wanted) -> LabelPlace | None:
        """A side of the point that is free, now taken; None if none is."""
        name, *part = wanted
        x, y = self.at(*part)
        for side in SIDES:
            box = label_box(name, x, y, side)
            if self.free(box, _point(x, y)):
                self.labels.append(box)
                return side
        return None

    def apart(self, wanted: Wanted) -> LabelPlace | None:
        """The nearest free place, with its line; None if there is none."""
        name, *part = wanted
        x, y = self.at(*part)
        own, open_places = _point(x, y), []
        for to_x, to_y in _rings(x, y):
            side = LabelPlace(*(("left", 2, 4) if to_x > x else ("right", -2, 4)))
            box = label_box(name, to_x, to_y, side)
            if not box.meets(own) and self.free(box, own):
                open_places.append((side, box, Leader(x, y, to_x, to_y)))
        for strict in (2, 1, 0):
            for side, box, leader in open_places:
                if self.clear(leader, own, strict):
                    self.labels.append(box)
                    self.leaders.append(leader)
                    return replace(side, lead=self.parts(leader.to_x, leader.to_y))
        return None


def places(
    wanted: Sequence[Wanted],
    others: Sequence[tuple[float, float]],
    width: float = WIDTH,
    must: int = 0,
) -> list[LabelPlace | None]:
    """For each name a place on which it covers neither a point nor a name; None if none is.

    The first ``must`` names may stand apart from their points, with a line to them; they come
    before all others. ``others`` are points that have no name.
    """
    area = Box(0, -8, width - 30 * (width == WIDTH), HEIGHT)
    parts = [(x, y) for _, x, y in wanted] + list(others)
    empty = _Plot(area, [])
    empty.points = [_point(*empty.at(x, y)) for x, y in parts]
    leading = min(must, LEADING)
    plot, first = _settled(empty, wanted[:leading])
    return [*first, *(plot.beside(one) for one in wanted[leading:])]


def _settled(empty: _Plot, names: Sequence[Wanted]) -> tuple[_Plot, list[LabelPlace | None]]:
    """The best of several tries. Who found no place comes first the next time: a crowd is solved
    from its middle, which those at its edge would close."""
    early: list[int] = []
    best = None
    for _ in range(TRIES):
        plot = _Plot(empty.area, empty.points)
        found = _placed(plot, names, early)
        missing = [number for number in range(len(names)) if found[number] is None]
        rank = (len(missing), [-number for number in missing], plot.strain)
        if best is None or rank < best[0]:
            best = rank, plot, [found[number] for number in range(len(names))]
        if not missing:
            break
        early = [*missing, *(number for number in early if number not in missing)]
    return (empty, []) if best is None else best[1:]


def _placed(
    plot: _Plot, names: Sequence[Wanted], early: Sequence[int]
) -> dict[int, LabelPlace | None]:
    """The early ones wherever there is room, one by one; of the others first those that have room
    beside their points."""
    found = {number: plot.beside(names[number]) or plot.apart(names[number]) for number in early}
    rest = [number for number in range(len(names)) if number not in found]
    near = {number: plot.beside(names[number]) for number in rest}
    return found | {number: place or plot.apart(names[number]) for number, place in near.items()}


def _rings(x: float, y: float) -> Iterator[tuple[float, float]]:
    """Places around a point, the near ones first; not right above and below, where a name would
    lie across its own line."""
    for radius in RINGS:
        for number in range(DIRECTIONS):
            angle = 2 * math.pi * (number + 0.5) / DIRECTIONS
            if abs(math.cos(angle)) > 0.2:
                yield x + radius * math.cos(angle), y - radius * math.sin(angle)


def _point(x: float, y: float) -> Box:
    return Box(x - 6, y - 6, x + 6, y + 6)


def label_box(name: str, x: float, y: float, side: LabelPlace) -> Box:
    """What a name covers that is shifted from ``x`` and ``y``, in pixels."""
    width = CHARACTER * min(len(name), LONGEST)
    start = {"left": 0.0, "right": -width, "center": -width / 2}[side.align]
    left, bottom = x + side.dx + start, y + side.dy + 2
    return Box(left, bottom - LINE, left + width, bottom)
