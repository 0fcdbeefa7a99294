"""A table as data: what it says, independent of HTML, Markdown, LaTeX or a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

DIRECTIONS = {1: "higher is better", -1: "lower is better"}
SIGNS = {"better": "✓ better", "worse": "✗ worse", "open": "○ open"}


@dataclass(frozen=True)
class TableCell:
    """``text``, its deviation or interval in ``extra``, and the paper's figure in ``paper``."""

    text: str
    extra: str = ""
    paper: str = ""
    order: float | None = None
    """what to sort by; cells without it come last"""
    rank: int = 0
    """1 for the best of its column, 2 for the second, else 0"""
    verdict: str = ""
    """better, worse or open where this is a difference"""
    compared: bool = True
    """False for what must never be called best, such as what a model keeps that learned nothing"""

    @property
    def sign(self) -> str:
        """The verdict as a sign and a word, because a colour alone does not tell everybody."""
        return SIGNS.get(self.verdict, "")


@dataclass(frozen=True)
class Column:
    """A column's title, and which way is better."""

    title: str
    group: str = ""
    better: int = 0
    explanation: str = ""
    ranked: bool = True
    """False where the figures by themselves name no best"""
    text: bool = False
    """whether its cells are words, which may go over several lines"""

    @property
    def arrow(self) -> str:
        """An arrow that says which way is better."""
        return {1: "↑", -1: "↓", 0: ""}[self.better]

    @property
    def words(self) -> str:
        """What the title means, and which way is better."""
        return "; ".join(filter(None, [self.explanation, DIRECTIONS.get(self.better, "")]))


@dataclass(frozen=True)
class Line:
    """One line of a table."""

    label: str
    cells: tuple[TableCell | None, ...]
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Lines that belong together, under a title."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Table:
    """A table as data."""

    caption: str
    first: str
    """the title of the first column"""
    columns: tuple[Column, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Neighbouring columns of the same group, and how many they are."""
        found: list[tuple[str, int]] = []
        for column in self.columns:
            if found and found[-1][0] == column.group:
                found[-1] = (column.group, found[-1][1] + 1)
            else:
                found.append((column.group, 1))
        return found


def by_section(lines: Iterable[tuple[str, Line]]) -> tuple[Section, ...]:
    """Sections in the order in which they first appear."""
    found: dict[str, list[Line]] = {}
    for title, line in lines:
        found.setdefault(title, []).append(line)
    return tuple(Section(title, tuple(lines)) for title, lines in found.items())


def ranked(table: Table) -> Table:
    """The best and the second best of each column marked, over all sections as the paper does."""
    lines = [line for section in table.sections for line in section.lines]
    places = [
        _ranks([line.cells[index] for line in lines], column.better if column.ranked else 0)
        for index, column in enumerate(table.columns)
    ]
    numbers = iter(range(len(lines)))
    return replace(
        table,
        sections=tuple(
            Section(
                section.title,
                tuple(_with_ranks(line, places, next(numbers)) for line in section.lines),
            )
            for section in table.sections
        ),
    )


def _ranks(cells: Sequence[TableCell | None], better: int) -> list[int]:
    """Equal as shown is equal; nothing is marked where there is nothing to compare."""
    values = [
        better * round(cell.order, 2) if cell and cell.compared and cell.order is not None else None
        for cell in cells
    ]
    steps = sorted({value for value in values if value is not None}, reverse=True)
    if not better or len(steps) < 2:
        return [0] * len(cells)
    places = {steps[0]: 1, steps[1]: 2}
    return [0 if value is None else places.get(value, 0) for value in values]


def _with_ranks(line: Line, places: Sequence[Sequence[int]], number: int) -> Line:
    cells = (
        cell and replace(cell, rank=ranks[number])
        for cell, ranks in zip(line.cells, places, strict=True)
    )
    return replace(line, cells=tuple(cells))


def text_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Of cells that are text already; those that begin with a number sort by it.

    >>> found = text_table("", ("rule", "damage"), [("FO", "1,200 ± 3")])
    >>> found.sections[0].lines[0].cells[0].order
    1200.0
    """
    lines = (
        Line(row[0], tuple(TableCell(text, order=_number(text)) for text in row[1:]))
        for row in rows
    )
    return Table(caption, head[0], tuple(map(Column, head[1:])), (Section("", tuple(lines)),))


def _number(text: str) -> float | None:
    try:
        return float(text.split()[0].rstrip("%").replace(",", ""))
    except (IndexError, ValueError):
        return None
