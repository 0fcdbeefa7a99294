"""The built site: links lead somewhere, nothing comes from elsewhere, formulas are rendered."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import risegrad

DOCS = Path(__file__).parents[2] / "docs"
LOADS = {("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("link", "href")}
NOT_LOADED = {"canonical", "prev", "next", "alternate"}  # links of a page to other pages


class Links(HTMLParser):
    """Addresses that a page loads, addresses that it leads to, and its anchors."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.led_to: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        for name in {"src", "href"} & set(found):
            loads = (tag, name) in LOADS and found.get("rel") not in NOT_LOADED
            (self.loaded if loads else self.led_to).append(found[name])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    # 404.html stands for any address, so its own are from the root of a server.
    return {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}


def target(page: Path, address: str) -> Path:
    path = page.parent / unquote(urlsplit(address).path) if urlsplit(address).path else page
    return (path / "index.html" if path.is_dir() else path).resolve()


def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    sources = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert set(re.findall(r"[\w/-]+\.md", str(navigation()))) == sources
    assert not [path for path in site.rglob("*") if path.suffix in {".md", ".py"}]


def navigation() -> object:
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["nav"]


def test_the_header_names_the_version() -> None:
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["site_name"] == f"risegrad {risegrad.__version__}"


def test_the_structure() -> None:
    sections = [next(iter(section)) for section in navigation()]  # type: ignore[attr-defined]
    assert sections == ["Get started", "Guides", "How it works", "Results", "Reference"]


def test_every_link_leads_somewhere(pages: dict[Path, Links]) -> None:
    assert len(pages) > 40
    for page, links in pages.items():
        for address in links.loaded + links.led_to:
            if not urlsplit(address).scheme:
                assert target(page, address).is_file(), (page, address)


def test_every_anchor_exists(pages: dict[Path, Links]) -> None:
    anchors = {page.resolve(): links.anchors for page, links in pages.items()}
    for page, links in pages.items():
        for address in links.led_to:
            parts = urlsplit(address)
            if parts.fragment and not parts.scheme:
                assert unquote(parts.fragment) in anchors[target(page, address)], (page, address)


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Links]) -> None:
    for page, links in pages.items():
        elsewhere = [a for a in links.loaded if urlsplit(a).scheme not in {"", "data"}]
        assert not elsewhere, (page, elsewhere)
    for sheet in site.rglob("*.css"):
        found = re.findall(r"(?:url\(|@import\s*)['\"]?((?:https?:)?//[^'\")]*)", sheet.read_text())
        assert not found, (sheet, found)


def test_formulas_are_rendered(site: Path, pages: dict[Path, Links]) -> None:
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert 'class="arithmatex"' not in text, page
        assert not re.search(r"<m[ion]>(\\|&amp;<|&<)", text), (
            f"{page}: LaTeX that was not understood"
        )
    for name in ("theory", "rule", "informed"):
        assert "<math" in (site / name / "index.html").read_text(encoding="utf-8"), name
