"""One colour, shape and dash for each method, the same in every chart of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
