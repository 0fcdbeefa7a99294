"""HTML and SVG elements as functions: whatever is not made here is escaped."""

from __future__ import annotations

from risegrad.lab.report.text import for_html

VOID = {"meta", "link", "br"}


class Markup(str):
    """Text that is HTML already: made by ``tag`` and ``joined``, and by the page for its assets."""

    __slots__ = ()


Child = str | None


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element. Attributes that are None or False are left out; ``aria_label`` is aria-label.

    >>> tag("p", "1 < 2 & ", tag("b", "so"), class_="note", hidden=True)
    '<p class="note" hidden>1 &lt; 2 &amp; <b>so</b></p>'
    """
    opening = "".join([name, *(_attribute(*pair) for pair in attributes.items())])
    if name in VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    return Markup("".join(_child(child) for child in children if child is not None))


def _child(child: str) -> str:
    return child if isinstance(child, Markup) else for_html(child)


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {written}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {written}="{for_html(text)}"'
