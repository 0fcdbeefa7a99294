"""A page as one HTML file that needs nothing else: no network, no other file.

Only the script and the style of this package may act: the content security policy names them by
their hashes, so that even text which slipped through the escaping could not run.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from itertools import count
from typing import Any

from risegrad.common.optional_imports import need
from risegrad.pages.page_blocks import Page
from risegrad.pages.page_tables import TableCell
from risegrad.pages.page_text import MISSING, for_script, visible, visible_lines
from risegrad.pages.page_theme import config
from risegrad.pages.vega_charts import vega_script

jinja2 = need("jinja2", "lab", "pages")
markupsafe = need("markupsafe", "lab", "pages")


def html(page: Page) -> str:
    """The page as one HTML file."""
    script, style = vega_script() + "\n" + _asset("page.js"), _asset("page.css")
    charts = {f"f{i}": figure.spec() for i, figure in enumerate(page.figures(), 1)}
    themes = {scheme: config(scheme) for scheme in ("light", "dark")}
    text: str = (
        _environment()
        .get_template("page.html")
        .render(
            page=page,
            policy=_policy(style, script),
            style=markupsafe.Markup(style),
            script=markupsafe.Markup(script),
            charts=markupsafe.Markup(for_script({"charts": charts, "themes": themes})),
            numbers=markupsafe.Markup(for_script(page.numbers)) if page.numbers else "",
            numbered=_numbered(),
        )
    )
    return text


def _numbered() -> Any:
    """Counters by letter: ``numbered("t")`` is t1, then t2."""
    counters: dict[str, Any] = {}
    return lambda letter: f"{letter}{next(counters.setdefault(letter, count(1)))}"


@cache
def _environment() -> Any:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("risegrad.pages", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
    )
    found.filters["kind_of"] = _kind_of
    found.filters["order"] = _order
    found.filters["code"] = _code
    found.globals["MISSING"] = MISSING
    return found


def _shown(value: Any) -> Any:
    """Every text that is not HTML already loses the characters that act; then it is escaped."""
    if isinstance(value, str) and not isinstance(value, markupsafe.Markup):
        return visible(value)
    return value


def _code(lines: tuple[str, ...]) -> Any:
    """Lines with their spaces; each loses the characters that act, and is escaped here."""
    return markupsafe.escape("\n".join(map(visible_lines, lines)))


def _order(cell: TableCell) -> str:
    """What the column sorts by: a number, else the text; nothing where there is no figure."""
    if cell.order is not None:
        return repr(float(cell.order))
    return "" if cell.text == MISSING else cell.text


@cache
def _asset(name: str) -> str:
    return files("risegrad.pages").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    def source(text: str) -> str:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return f"'sha256-{digest}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


KINDS = ("ChartFigure", "Table", "Paragraph", "ItemList", "CodeBlock", "Row", "Fold")
"""The blocks that ``blocks.html`` knows, by the names it knows them by."""


def _kind_of(block: object) -> str:
    name = type(block).__name__
    if name not in KINDS:  # the template would leave it out without a word
        raise TypeError(f"a block of a page must be one of {', '.join(KINDS)}; got {name}")
    return name
