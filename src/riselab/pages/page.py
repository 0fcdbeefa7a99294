"""What a page is made of, and the page as one HTML file, as Markdown, its charts as files.

The HTML needs nothing else: no network, no other file. Only the script and the style of this
package may act: the content security policy names them by their hashes, so that even text which
slipped through the escaping could not run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from risegrad.common.files import write_bytes, write_text
from risegrad.common.imports import need
from riselab.common.folders import cache_folder
from riselab.pages.charts import SMALL_TEXT, AnyChart, config, specification
from riselab.pages.tables import Table, TableCell
from riselab.pages.text import MISSING, for_markdown, for_script, visible, visible_lines


@dataclass(frozen=True)
class ChartFigure:
    """A chart, what it shows in words, and the same numbers as a table."""

    name: str
    """of its file; letters, digits and hyphens are kept"""
    title: str
    words: str
    """the text for screen readers"""
    chart: AnyChart
    table: Table
    note: str = ""
    in_short: str = ""
    """its abbreviations, in a line beside the title"""
    small: bool = False
    """whether it is for a column as narrow as a phone, such as a README"""

    def spec(self) -> dict[str, Any]:
        """Vega-Lite without looks: these depend on where it is shown."""
        # Without a description, Vega tells screen readers "Vega visualization".
        return {"description": visible(self.words), **specification(self.chart)}

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
    """A heading and a list; ``kind`` is warning or notes."""

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
        lines = "\n".join(map(visible_lines, self.lines))
        longest = max((len(run) for run in re.findall(r"`+", lines)), default=0)
        fence = "`" * max(3, longest + 1)
        return "\n".join((f"{fence}{visible(self.language)}", lines, fence))


@dataclass(frozen=True)
class Row:
    """Blocks side by side where there is room."""

    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Fold:
    """Details that open on demand."""

    title: str
    blocks: tuple[Block, ...]


Block = ChartFigure | Table | Paragraph | ItemList | CodeBlock | Row | Fold
KINDS = ("ChartFigure", "Table", "Paragraph", "ItemList", "CodeBlock", "Row", "Fold")
"""The blocks that ``blocks.html`` knows, by the names it knows them by."""


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


def html(page: Page) -> str:
    """The page as one HTML file."""
    raw = need("markupsafe", "lab", "pages").Markup
    script, style = vega_script() + "\n" + _asset("page.js"), _asset("page.css")
    charts = {f"f{i}": figure.spec() for i, figure in enumerate(page.figures(), 1)}
    themes = {scheme: config(scheme) for scheme in ("light", "dark")}
    counters: dict[str, Any] = {}
    text: str = (
        _environment()
        .get_template("page.html")
        .render(
            page=page,
            policy=_policy(style, script),
            style=raw(style),
            script=raw(script),
            charts=raw(for_script({"charts": charts, "themes": themes})),
            numbered=lambda letter: f"{letter}{next(counters.setdefault(letter, count(1)))}",
        )
    )
    return text


@cache
def _environment() -> Any:
    jinja2 = need("jinja2", "lab", "pages")
    markupsafe = need("markupsafe", "lab", "pages")

    def shown(value: Any) -> Any:
        """Every text that is not HTML already loses the characters that act; then it is escaped."""
        plain = isinstance(value, str) and not isinstance(value, markupsafe.Markup)
        return visible(value) if plain else value

    found = jinja2.Environment(
        loader=jinja2.PackageLoader("riselab.pages", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
    )
    found.filters |= {
        "kind_of": _kind_of,
        "order": _order,
        "code": lambda lines: markupsafe.escape("\n".join(map(visible_lines, lines))),
    }
    found.globals["MISSING"] = MISSING
    return found


def _kind_of(block: object) -> str:
    name = type(block).__name__
    if name not in KINDS:  # the template would leave it out without a word
        raise TypeError(f"a block of a page must be one of {', '.join(KINDS)}; got {name}")
    return name


def _order(cell: TableCell) -> str:
    """What the column sorts by: a number, else the text; nothing where there is no figure."""
    if cell.order is not None:
        return repr(float(cell.order))
    return "" if cell.text == MISSING else cell.text


@cache
def _asset(name: str) -> str:
    return files("riselab.pages").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    def source(text: str) -> str:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return f"'sha256-{digest}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def markdown(page: Page) -> str:
    """The page without its charts, which files of their own show."""
    lines = [f"# {for_markdown(page.title)}", ""]
    for warning in page.warnings:
        lines += _markdown_blocks([warning])
    for part in page.parts:
        if part.title:
            lines += [f"## {for_markdown(part.title)}", ""]
        for sentence in filter(None, (part.question, part.finding)):
            lines += [for_markdown(sentence), ""]
        lines += _markdown_blocks(part.blocks)
    return "\n".join(lines).rstrip() + "\n"


def _markdown_blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        if isinstance(block, Table):
            yield from block.markdown()
        elif isinstance(block, Paragraph):
            yield from (for_markdown(block.text), "")
        elif isinstance(block, ItemList):
            yield from (f"**{for_markdown(block.title)}**", "") if block.title else ()
            yield from (f"- {for_markdown(text)}" for text in block.items)
            yield ""
        elif isinstance(block, CodeBlock):
            yield from (f"**{for_markdown(block.title)}**", "", block.markdown(), "")
        elif isinstance(block, Row):
            yield from _markdown_blocks(block.blocks)
        elif isinstance(block, Fold) and (inner := list(_markdown_blocks(block.blocks))):
            yield from (f"### {for_markdown(block.title)}", "", *inner)


VEGA_LITE = "6.4"
"""The version whose specifications the Altair of the ``lab`` extra writes."""
SNIPPET = "window.vegaEmbed=vegaEmbed;"
SCALE = 2.0
"""Pixels of a PNG for each of the page."""


@cache
def vega_script() -> str:
    """JavaScript that defines ``vegaEmbed`` and asks for nothing.

    Bundling it takes seconds and gives the same text each time, so that it is kept in the user's
    cache folder, by the version that made it.
    """
    folder = cache_folder("pages")
    if folder is None:
        return _bundled()
    kept = folder / f"vega-{VEGA_LITE}-vl-convert-{version('vl-convert-python')}.js"
    with suppress(OSError, UnicodeDecodeError):
        return kept.read_text(encoding="utf-8")
    text = _bundled()
    with suppress(OSError):  # a cache that cannot be written is no reason to stop
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(kept, text)
    return text


def _bundled() -> str:
    text: str = _converter().javascript_bundle(SNIPPET, vl_version=VEGA_LITE)
    # "</script" would end the element that carries it; inside a string, "<\/" is the same text.
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def save_figures(figures: Iterable[ChartFigure], folder: Path) -> list[Path]:
    """Each figure as SVG and PNG, light and on white; small ones also dark. Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for figure in figures:
        name, again = figure.file_name, 2
        while folder / f"{name}.svg" in written:  # two figures of one name
            name, again = f"{figure.file_name}-{again}", again + 1
        for scheme, ending in {"light": "", "dark": "-dark"}.items():
            if scheme == "light" or figure.small:
                svg = svg_of(figure, scheme)
                files = [folder / f"{name}{ending}.{kind}" for kind in ("svg", "png")]
                write_text(files[0], svg)
                write_bytes(files[1], _converter().svg_to_png(svg, scale=SCALE))
                written += files
    return written


def svg_of(figure: ChartFigure, scheme: str = "light") -> str:
    """A figure as SVG."""
    looks = config(scheme, SMALL_TEXT) if figure.small else config(scheme)
    found: str = _converter().vegalite_to_svg(figure.spec(), vl_version=VEGA_LITE, config=looks)
    return found


def _converter() -> Any:
    return need("vl_convert", "lab", "pages and charts")
