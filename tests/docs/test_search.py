"""The site in a real browser: the search, and no request to another server."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tail import IN_PAGE

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on PATH (on Debian: apt-get install chromium)"
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as tool:
        # No sandbox: tests also run as root in containers, where chromium has none.
        started = tool.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=IN_PAGE
        )
        yield started
        started.close()


@pytest.fixture
def page(browser: playwright.Browser, address: str) -> Iterator[playwright.Page]:
    """A page; in the end it has asked no other server for anything, and complained of nothing."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(IN_PAGE)
    asked: list[str] = []
    complaints: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened
    opened.close()
    assert asked
    assert not [url for url in asked if not url.startswith((address, "data:", "blob:"))]
    assert complaints == []


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("attach", "reference/risegrad/#risegrad.core.attachment.attach"),
        ("remember", "reference/risegrad/#risegrad."),
    ],
)
def test_the_search_finds_the_function_first(
    page: playwright.Page, address: str, words: str, first: str
) -> None:
    page.goto(address)
    page.keyboard.press("/")
    page.locator("input[type=text]:visible, [role=combobox]:visible").first.wait_for()
    page.keyboard.type(words)
    found = page.locator(f"a[href*='h={words}']:visible").first
    found.wait_for()
    assert found.get_attribute("href").replace(f"?h={words}", "").startswith(address + first)


def test_formulas_have_their_font(page: playwright.Page, address: str) -> None:
    page.goto(f"{address}rule/")
    page.evaluate("document.fonts.ready")
    assert page.evaluate("document.fonts.check('16px \"STIX Two Math\"')")
    assert page.locator("math").first.bounding_box()["width"] > 5


@pytest.mark.parametrize("name", ["", "theory/", "settings/", "results/", "reference/risegrad/"])
def test_no_page_is_wider_than_a_phone(page: playwright.Page, address: str, name: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(address + name)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, "wide tables and formulas scroll by themselves"


def test_the_dark_scheme_can_be_chosen(page: playwright.Page, address: str) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(address)
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    assert page.evaluate(scheme) == "default"
    page.locator("label[title='Switch to dark']:visible").click()
    assert page.evaluate(scheme) == "slate"
