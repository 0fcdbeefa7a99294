"""The tables as Markdown that GitHub and MkDocs both read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from risegrad.lab.report.report_parts import PAPER_CAUTION, Chapter, Report
from risegrad.pages.page_tables import Line, Table, TableCell
from risegrad.pages.page_text import MISSING
from risegrad.pages.page_text import for_markdown as safe


def markdown(report: Report) -> str:
    """The whole report, without its figures."""
    lines = ["# RISE report", ""]
    lines += [f"- **Left out:** {safe(text)}" for text in report.left_out]
    lines += [f"- **Note:** {safe(text)}" for text in report.remarks]
    if report.left_out or report.remarks:
        lines.append("")
    if report.paper:
        lines += ["## Beside the paper", "", PAPER_CAUTION, ""]
        for table in report.paper:
            lines += _table(table)
    for chapter in report.chapters:
        lines += _chapter(chapter)
    for saved in report.saved:
        lines += [f"## {safe(saved.title)}", "", safe(saved.finding), ""]
    return "\n".join(lines).rstrip() + "\n"


def _chapter(chapter: Chapter) -> Iterator[str]:
    yield from [f"## Experiment {safe(chapter.experiment.name)}", ""]
    tables = chapter.tables()
    first = tables.index(chapter.results) + 1
    if chapter.frontiers:
        yield from [safe(chapter.headline), ""]
    if chapter.choice:
        yield from [safe(chapter.choice), ""]
    for table in tables[:first]:
        yield from _table(table)
    for finding in chapter.findings if chapter.differences else ():
        yield from [f"**{safe(finding.heading)}**", ""]
        yield from [f"- Row {safe(sentence)}" for sentence in finding.sentences] or ["- none"]
        yield ""
    yield from [safe(chapter.caveat), ""]
    for table in tables[first:]:
        yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    titles = [table.first]
    for column in table.columns:
        titles.append(" ".join(filter(None, [column.group, column.title, column.arrow])))
    yield from [f"**{safe(table.caption)}**", ""]
    yield _line(map(safe, titles))
    yield _line(["---", *["---:"] * len(table.columns)])
    for section in table.sections:
        if section.title:
            yield _line([f"*{safe(section.title)}*", *[" "] * len(table.columns)])
        for line in section.lines:
            yield _line([_label(line), *map(_cell, line.cells)])
    yield ""
    for note in table.notes:
        yield from [f"*{safe(note)}*", ""]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _label(line: Line) -> str:
    return f"{safe(line.label)} ({safe(line.note)})" if line.note else safe(line.label)


def _cell(cell: TableCell | None) -> str:
    if cell is None:
        return MISSING
    mark = {1: "**", 2: "_"}.get(cell.rank, "")
    parts = [f"{mark}{safe(cell.text)}{mark}", safe(cell.extra)]
    parts.append(f"(paper {safe(cell.paper)})" if cell.paper else "")
    parts.append(cell.verdict)
    return " ".join(filter(None, parts))
