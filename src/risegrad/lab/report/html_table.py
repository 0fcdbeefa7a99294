"""Tables as HTML: captions, scopes, sort buttons, and words for what colour and place say."""

from __future__ import annotations

from risegrad.lab.report.differences import BETTER, OPEN, WORSE
from risegrad.lab.report.markup import Markup, joined, tag
from risegrad.lab.report.tables import Cell, Column, Line, Section, Table
from risegrad.lab.report.text import MISSING

DIRECTIONS = {1: "higher is better", -1: "lower is better"}
SIGNS = {BETTER: "✓ better", WORSE: "✗ worse", OPEN: "○ open"}


def html_table(table: Table, identity: str) -> Markup:
    """The table in a frame of its own that scrolls sideways where the screen is narrow."""
    caption = tag("caption", tag("span", table.caption), id=f"{identity}-caption")
    element = tag(
        "table",
        caption,
        tag("thead", *_head(table)),
        *(_body(section, len(table.columns) + 1) for section in table.sections),
        data_sortable=True,
    )
    frame = tag(
        "div",
        element,
        class_="frame",
        role="region",
        tabindex="0",
        aria_labelledby=f"{identity}-caption",
    )
    return joined(frame, *(tag("p", note, class_="note") for note in table.notes))


def _head(table: Table) -> list[Markup]:
    titles = tag(
        "tr",
        _sortable(Column(table.first)),
        *(_sortable(column) for column in table.columns),
    )
    if not any(title for title, _ in table.groups):
        return [titles]
    groups = (
        tag("th", title, scope="colgroup", colspan=str(count), class_="group")
        for title, count in table.groups
    )
    return [tag("tr", tag("td"), *groups), titles]


def _sortable(column: Column) -> Markup:
    spoken = [column.explanation, DIRECTIONS.get(column.better, "")]
    words = "; ".join(filter(None, spoken))
    button = tag(
        "button",
        tag("span", column.title),
        tag("span", column.arrow, aria_hidden="true", class_="arrow") if column.better else None,
        hidden_words(f" ({words})") if words else None,
        type="button",
        title=words or None,
    )
    return tag("th", button, scope="col", aria_sort="none")


def _body(section: Section, width: int) -> Markup:
    title = None
    if section.title:
        heading = tag("th", tag("span", section.title), colspan=str(width), scope="rowgroup")
        title = tag("tr", heading, class_="section")
    return tag("tbody", title, *map(_line, section.lines))


def _line(line: Line) -> Markup:
    note = tag("small", line.note) if line.note else None
    label = tag("th", tag("span", line.label), note, scope="row", data_order=line.label)
    return tag("tr", label, *map(_cell, line.cells))


def _cell(cell: Cell | None) -> Markup:
    if cell is None:
        return tag("td", tag("span", MISSING, aria_hidden="true"), hidden_words("no figure"))
    main = {1: "strong", 2: "u"}.get(cell.rank, "span")
    best = {1: " best", 2: " second best"}.get(cell.rank, "")
    return tag(
        "td",
        tag("span", tag(main, cell.text), hidden_words(best) if best else None, class_="main"),
        tag("span", cell.extra, class_="extra") if cell.extra else None,
        tag("span", f"paper {cell.paper}", class_="paper") if cell.paper else None,
        tag("span", SIGNS[cell.verdict], class_="verdict") if cell.verdict in SIGNS else None,
        class_=cell.verdict or None,
        data_order=_order(cell),
    )


def _order(cell: Cell) -> str | None:
    """What the column sorts by: a number, else the text; nothing where there is no figure."""
    if cell.order is not None:
        return repr(float(cell.order))
    return None if cell.text == MISSING else cell.text


def hidden_words(text: str) -> Markup:
    """For screen readers only."""
    return tag("span", text, class_="spoken")
