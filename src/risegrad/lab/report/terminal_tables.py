"""The results and what the differences say, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from risegrad.common.text_columns import text_columns
from risegrad.lab.report.report_parts import Chapter, Report
from risegrad.pages.page_tables import Table, TableCell
from risegrad.pages.page_text import MISSING, visible

WIDEST = 40
"""Characters of a label; longer ones are cut, so that columns stay columns."""


def plain(report: Report) -> str:
    """The report for a terminal."""
    lines = [line for chapter in report.chapters for line in _chapter(chapter)]
    lines += [visible(f"{saved.title}: {saved.finding}") for saved in report.saved]
    return "\n".join(lines)


def _chapter(chapter: Chapter) -> Iterator[str]:
    yield visible(chapter.results.caption)
    yield from plain_table(chapter.results)
    if chapter.choice:
        yield visible(chapter.choice)
    for finding in chapter.findings if chapter.differences else ():
        yield visible(f"{finding.heading}:")
        yield from (f"  {visible(sentence)}" for sentence in finding.sentences or ("none",))
    yield ""
    if chapter.equal:  # last, where a terminal stops
        yield from (visible(chapter.equal.caption), *plain_table(chapter.equal))
        yield from map(visible, chapter.equal.notes)
        yield from ("", visible(chapter.headline), "")


def plain_table(table: Table) -> list[str]:
    """Aligned columns; sections and the paper's figures are left to the page, which is wider."""
    head = [table.first, *(f"{column.title}{column.arrow}" for column in table.columns)]
    body = [
        [_cut(line.label), *map(_cell, line.cells)]
        for section in table.sections
        for line in section.lines
    ]
    return text_columns([head, *body])


def _cut(label: str) -> str:
    text = visible(label)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _cell(cell: TableCell | None) -> str:
    if cell is None:
        return MISSING
    return f"{cell.text} {cell.extra}".rstrip()
