"""A table as data, and its renderers: for a terminal, Markdown and notebooks (a page has its own).

HTML of a page comes from ``templates/blocks.html``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from risegrad.common.text_columns import text_columns
from riselab.common.intervals import Estimate
from riselab.pages.text import (
    MISSING,
    for_markdown,
    interval_text,
    number,
    signed,
    spread_text,
    visible,
)

DIRECTIONS = {1: "higher is better", -1: "lower is better"}
SIGNS = {"better": "✓ better", "worse": "✗ worse", "open": "○ open"}
WIDEST = 40
"""Characters of a label in a terminal; longer ones are cut, so that columns stay columns."""


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
    """better, worse or open where this is a difference, or says so itself in words"""
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
    notes: tuple[str, ...] = ()

    @property
    def lines(self) -> list[Line]:
        """Of all sections."""
        return [line for section in self.sections for line in section.lines]

    def plain(self) -> list[str]:
        """Aligned columns for a terminal, without sections and figures of the paper."""
        head = [self.first, *(f"{column.title}{column.arrow}" for column in self.columns)]
        body = [[_cut(line.label), *map(_plain_cell, line.cells)] for line in self.lines]
        return text_columns([head, *body])

    def markdown(self) -> Iterator[str]:
        """Lines that GitHub and MkDocs both read."""
        titles = [f"{column.title} {column.arrow}".rstrip() for column in self.columns]
        yield from [f"**{for_markdown(self.caption)}**", ""]
        yield _markdown_line(map(for_markdown, [self.first, *titles]))
        yield _markdown_line(["---", *["---:"] * len(titles)])
        for section in self.sections:
            if section.title:
                yield _markdown_line([f"*{for_markdown(section.title)}*", *[" "] * len(titles)])
            for line in section.lines:
                label = f"{line.label} ({line.note})" if line.note else line.label
                yield _markdown_line([for_markdown(label), *map(_markdown_cell, line.cells)])
        yield ""
        for note in self.notes:
            yield from [f"*{for_markdown(note)}*", ""]

    def notebook(self, caption: str = "") -> str:
        """A small HTML table in the notebook's own style: no page, no script.

        >>> text_table("", ("", "Fgt"), [["a<b", "1.0"]]).notebook()
        '<table><thead><tr><th></th><th>Fgt</th></tr></thead><tbody><tr><td \
style="text-align:left">a&lt;b</td><td>1.0</td></tr></tbody></table>'
        """
        title = f"<caption>{in_html(caption)}</caption>" if caption else ""
        head = "".join(
            f"<th>{in_html(word)}</th>" for word in (self.first, *(c.title for c in self.columns))
        )
        body = "".join(f"<tr>{_notebook_line(line)}</tr>" for line in self.lines)
        return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def in_html(text: str) -> str:
    """Text as HTML that shows it."""
    return escape(visible(text))


def _cut(label: str) -> str:
    text = visible(label)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _plain_cell(cell: TableCell | None) -> str:
    return MISSING if cell is None else visible(f"{cell.text} {cell.extra}").rstrip()


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: TableCell | None) -> str:
    if cell is None:
        return MISSING
    mark = {1: "**", 2: "_"}.get(cell.rank, "")
    paper = f"(paper {for_markdown(cell.paper)})" if cell.paper else ""
    text = f"{mark}{for_markdown(cell.text)}{mark}" if cell.text else ""
    said = cell.order is not None and cell.verdict in SIGNS  # words say it themselves
    verdict = cell.verdict if said else ""
    return " ".join(filter(None, [text, for_markdown(cell.extra), paper, verdict]))


def _notebook_line(line: Line) -> str:
    cells = "".join(f"<td>{in_html(_plain_cell(cell))}</td>" for cell in line.cells)
    return f'<td style="text-align:left">{in_html(line.label)}</td>{cells}'


def spread_cell(
    found: Estimate | None, paper: Estimate | None = None, *, idle: bool = False, digits: int = 2
) -> TableCell | None:
    """Mean, deviation, and the paper's figure; None if there is neither.

    What an ``idle`` row keeps is never the best of a column.
    """
    if found is None:
        return None if paper is None else TableCell(MISSING, paper=spread_text(paper))
    sd = "" if found.sd is None else f"± {number(found.sd, digits)}"
    beside = "" if paper is None else spread_text(paper)
    return TableCell(number(found.mean, digits), sd, beside, found.mean, compared=not idle)


def difference_cell(found: Estimate | None, verdict: str = "", digits: int = 2) -> TableCell | None:
    """A difference with its interval."""
    if found is None:
        return None
    ends = interval_text(found, digits)
    return TableCell(signed(found.mean, digits), ends, order=found.mean, verdict=verdict)


def number_cell(value: float | None, digits: int = 2) -> TableCell | None:
    """A number, where there is one."""
    return None if value is None else TableCell(number(value, digits), order=value)


def by_section(lines: Iterable[tuple[str, Line]]) -> tuple[Section, ...]:
    """Sections in the order in which they first appear."""
    found: dict[str, list[Line]] = {}
    for title, line in lines:
        found.setdefault(title, []).append(line)
    return tuple(Section(title, tuple(lines)) for title, lines in found.items())


def ranked(table: Table) -> Table:
    """The best and the second best of each column marked, over all sections as the paper does."""
    ranks = [
        _ranks([line.cells[index] for line in table.lines], column.better * column.ranked)
        for index, column in enumerate(table.columns)
    ]
    places = iter(zip(*ranks, strict=True))

    def marked(line: Line) -> Line:
        cells = zip(line.cells, next(places), strict=True)
        return replace(line, cells=tuple(cell and replace(cell, rank=r) for cell, r in cells))

    sections = (Section(s.title, tuple(map(marked, s.lines))) for s in table.sections)
    return replace(table, sections=tuple(sections)) if table.columns else table


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


def text_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Of cells that are text already; those that begin with a number sort by it.

    >>> found = text_table("", ("rule", "damage"), [("FO", "1,200 ± 3")])
    >>> found.lines[0].cells[0].order
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
