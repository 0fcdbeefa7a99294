"""What a page is made of: figures, tables, words, and folds around them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from altair.utils.schemapi import debug_mode

from risegrad.pages.charts.chart_axes import AnyChart
from risegrad.pages.page_tables import Table
from risegrad.pages.page_text import visible


@dataclass(frozen=True)
class ChartFigure:
    """A chart, what it shows in words, and the same numbers as a table."""

    name: str
    """of its file; letters, digits and hyphens are kept"""
    title: str
    words: str
    """what a screen reader is told"""
    chart: AnyChart
    table: Table
    note: str = ""
    in_short: str = ""
    """its abbreviations, in a line beside the title"""

    def spec(self) -> dict[str, Any]:
        """Vega-Lite without looks: these depend on where it is shown."""
        with debug_mode(False):
            found: dict[str, Any] = self.chart.to_dict(validate=False)
        kept = {key: value for key, value in found.items() if key not in {"config", "$schema"}}
        # Without it, Vega tells screen readers "Vega visualization".
        return {"description": visible(self.words), **kept}

    @property
    def file_name(self) -> str:
        """The figure's name in letters that every file system takes."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:80] or "figure"


@dataclass(frozen=True)
class Paragraph:
    """Words."""

    text: str
    kind: str = ""
    """lead, note, or nothing"""


@dataclass(frozen=True)
class ItemList:
    """A heading and a list; ``kind`` is better, worse, open, unknown, warning or notes."""

    title: str
    items: tuple[str, ...]
    kind: str = "notes"


@dataclass(frozen=True)
class CodeBlock:
    """A heading and lines of code, which keep their spaces."""

    title: str
    lines: tuple[str, ...]
    language: str = "python"

    def markdown(self) -> str:
        """The lines between fences, which are longer than any run of backticks in them."""
        longest = max((len(run) for run in re.findall(r"`+", "\n".join(self.lines))), default=0)
        fence = "`" * max(3, longest + 1)
        return "\n".join((f"{fence}{self.language}", *self.lines, fence))


@dataclass(frozen=True)
class Row:
    """Blocks side by side where there is room."""

    blocks: tuple[Block, ...]
    kind: str = "grid"


@dataclass(frozen=True)
class Fold:
    """Details that open on demand."""

    title: str
    blocks: tuple[Block, ...]


Block = ChartFigure | Table | Paragraph | ItemList | CodeBlock | Row | Fold


@dataclass(frozen=True)
class Part:
    """A section: title, question and finding, then blocks."""

    title: str
    blocks: tuple[Block, ...]
    question: str = ""
    finding: str = ""


@dataclass(frozen=True)
class Page:
    """The first part is what a reader sees first; its title is the page's if there is no other."""

    title: str
    parts: tuple[Part, ...]
    summary: str = ""
    """one line below the title"""
    warnings: tuple[ItemList, ...] = ()
    glossary: tuple[tuple[str, str], ...] = ()
    """abbreviations and what they mean"""
    numbers: dict[str, Any] = field(default_factory=dict)
    """plain data that the page offers to save"""

    def figures(self) -> Iterator[ChartFigure]:
        """All figures of the page, in their order."""
        for part in self.parts:
            yield from _figures(part.blocks)


def _figures(blocks: Sequence[Block]) -> Iterator[ChartFigure]:
    for block in blocks:
        if isinstance(block, ChartFigure):
            yield block
        elif isinstance(block, Row | Fold):
            yield from _figures(block.blocks)
