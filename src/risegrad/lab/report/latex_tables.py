"""The tables as LaTeX; needs the package booktabs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from risegrad.lab.report.report_parts import Report
from risegrad.pages.page_tables import Line, Section, Table, TableCell
from risegrad.pages.page_text import for_latex as safe


def latex(report: Report) -> str:
    """All tables of a report."""
    lines = ["% Tables of a RISE report; needs \\usepackage{booktabs}.", ""]
    lines += [f"% Left out: {safe(text)}" for text in report.left_out]
    lines += [f"% Note: {safe(text)}" for text in report.remarks]
    for table in report.paper:
        lines += _table(table)
    for chapter in report.chapters:
        for table in chapter.tables():
            lines += _table(table)
    return "\n".join(lines).rstrip() + "\n"


def _table(table: Table) -> Iterator[str]:
    yield from [r"\begin{table}[t]", r"  \centering", r"  \small"]
    yield f"  \\caption{{{safe(' '.join([table.caption + '.', *table.notes]))}}}"
    yield f"  \\begin{{tabular}}{{@{{}}l{'c' * len(table.columns)}@{{}}}}"
    yield r"    \toprule"
    yield from _groups(table)
    titles = (safe(f"{column.title}{column.arrow}") for column in table.columns)
    yield _row([f"\\textbf{{{safe(table.first)}}}", *titles])
    for section in table.sections:
        yield r"    \midrule"
        yield from _section(section, len(table.columns) + 1)
    yield from [r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""]


def _groups(table: Table) -> Iterator[str]:
    if not any(title for title, _ in table.groups):
        return
    heads = [f"\\multicolumn{{{n}}}{{c}}{{\\textbf{{{safe(t)}}}}}" for t, n in table.groups]
    yield _row(["", *heads])
    ends = list(accumulate((n for _, n in table.groups), initial=1))
    rules = (f"\\cmidrule(lr){{{a + 1}-{b}}}" for a, b in pairwise(ends))
    yield f"    {''.join(rules)}"


def _section(section: Section, width: int) -> Iterator[str]:
    if section.title:
        yield _row([f"\\multicolumn{{{width}}}{{c}}{{\\textbf{{{safe(section.title)}}}}}"])
        yield r"    \midrule"
    for line in section.lines:
        yield _row([_label(line), *map(_cell, line.cells)])


def _row(cells: list[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _label(line: Line) -> str:
    note = f" {{\\scriptsize ({safe(line.note)})}}" if line.note else ""
    # An opening bracket after the line break of the row above would be read as its argument.
    return f"{{{safe(line.label)}}}{note}"


def _cell(cell: TableCell | None) -> str:
    if cell is None:
        return "--"
    command = {1: r"\textbf", 2: r"\underline"}.get(cell.rank, "")
    text = f"{command}{{{safe(cell.text)}}}"
    small = [safe(cell.extra), f"({safe(cell.paper)})" if cell.paper else "", cell.verdict]
    rest = " ".join(filter(None, small))
    return f"{text} {{\\scriptsize {rest}}}" if rest else text
