"""How charts look: a colour, shape and dash for each method, and light or dark around them."""

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
