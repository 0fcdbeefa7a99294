"""The libraries behind the charts: the script that pages carry, and files made without a browser.

``vl-convert`` holds Vega, Vega-Lite and Vega-Embed. Bundling them takes seconds and gives the same
text each time, so that it is kept in the user's cache folder, by the version that made it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from risegrad.common.atomic_files import cache_folder, write_bytes, write_text
from risegrad.common.optional_imports import need
from risegrad.pages.page_blocks import ChartFigure
from risegrad.pages.page_theme import config

VEGA_LITE = "6.4"
"""The version whose specifications the Altair of the ``lab`` extra writes."""
SNIPPET = "window.vegaEmbed=vegaEmbed;"
SCALE = 2.0
"""Pixels of a PNG for each of the page."""


@cache
def vega_script() -> str:
    """JavaScript that defines ``vegaEmbed`` and asks for nothing."""
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
    """Each figure as SVG and PNG, light and on white; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for figure in figures:
        base = _free_name(folder / figure.file_name, written)
        svg = svg_of(figure)
        png = _converter().svg_to_png(svg, scale=SCALE)
        write_text(base.with_suffix(".svg"), svg)
        write_bytes(base.with_suffix(".png"), png)
        written += [base.with_suffix(".svg"), base.with_suffix(".png")]
    return written


def svg_of(figure: ChartFigure) -> str:
    """A figure as SVG."""
    spec: dict[str, Any] = figure.spec()
    found: str = _converter().vegalite_to_svg(spec, vl_version=VEGA_LITE, config=config("light"))
    return found


def _free_name(base: Path, written: list[Path]) -> Path:
    """Two figures of one name get a number."""
    found, number = base, 2
    while found.with_suffix(".svg") in written:
        found, number = base.with_name(f"{base.name}-{number}"), number + 1
    return found


def _converter() -> Any:
    return need("vl_convert", "lab", "pages and charts")
