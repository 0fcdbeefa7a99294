"""Small HTML tables for notebooks, in the notebook's own style: no page, no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from risegrad.pages.page_text import visible


def notebook_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table whose texts are escaped; the first column is text, the others are numbers.

    >>> notebook_table(["", "Fgt"], [["a<b", "1.0"]])
    '<table><thead><tr><th></th><th>Fgt</th></tr></thead><tbody><tr><td style="text-align:left">\
a&lt;b</td><td>1.0</td></tr></tbody></table>'
    """
    title = f"<caption>{_text(caption)}</caption>" if caption else ""
    top = "".join(f"<th>{_text(word)}</th>" for word in head)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    return f"<table>{title}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def notebook_paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{_text(text)}</p>"


def _row(cells: Sequence[str]) -> str:
    first, *rest = map(_text, cells)
    return f'<td style="text-align:left">{first}</td>' + "".join(
        f"<td>{cell}</td>" for cell in rest
    )


def _text(text: str) -> str:
    return escape(visible(text))
