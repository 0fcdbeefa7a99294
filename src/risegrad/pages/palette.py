"""One colour and one shape for each method, the same in every chart of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Each differs from white and from the dark ground by a contrast of at least 3.
COLOURS = ("#2b7bd4", "#c8600a", "#2a8c4e", "#a357d1", "#c93a56", "#11878f", "#8f7412")
SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down")
"""Seven colours and six shapes have no common factor: 42 names before a pair comes again."""
NEUTRAL = "#8792a2"
"""For what is not one of our methods, such as the figures of a paper."""


@dataclass(frozen=True)
class Mark:
    """The look of one method."""

    colour: str
    shape: str


class Palette(Mapping[str, Mark]):
    """The marks of all names on a page, in the order in which they were first given.

    >>> Palette(["FO", "RISE", "FO"])["RISE"]
    Mark(colour='#c8600a', shape='square')
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._marks = {
            name: Mark(COLOURS[i % len(COLOURS)], SHAPES[i % len(SHAPES)])
            for i, name in enumerate(dict.fromkeys(names))
        }

    def __getitem__(self, name: str) -> Mark:
        return self._marks[name]

    def __iter__(self) -> Any:
        return iter(self._marks)

    def __len__(self) -> int:
        return len(self._marks)
