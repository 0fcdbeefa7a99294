"""Reports of made-up studies and a browser that opens them, as fixtures for ``conftest.py``."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lab.report.made_up import hostile, record, save, swept_study, whole_study
from risegrad.lab.records.record import RecordError, read_records
from risegrad.lab.report.builder import build, write_report

CHROMIUM = shutil.which("chromium")
Open = Callable[..., Any]
"""Opens a page by its name, at a size in pixels."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of a whole study and of a hostile one."""
    folder = tmp_path_factory.mktemp("pages")
    whole_study(folder / "study")
    swept_study(folder / "swept")
    bad = [hostile(seed) for seed in range(3)]
    plain = [
        record("FO", seed, experiment=bad[0]["experiment"], baseline=True) for seed in range(3)
    ]
    save(folder / "hostile", *bad, *plain)
    addresses = {}
    for name in ("study", "hostile", "swept"):
        records, _ = read_records([folder / name])
        problems = [RecordError("broken <b>.json", "is not complete JSON")]
        out = folder / f"{name}.html"
        write_report(build(records, problems), out)
        addresses[name] = out.as_uri()
    return addresses


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as tool:
        # No sandbox: tests also run as root in containers, where chromium has none.
        started = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, pages: dict[str, str]) -> Iterator[Open]:
    """Opens a page; in the end nothing was on the console and nothing but files was asked for."""
    complaints: list[str] = []
    requests: list[str] = []
    contexts = []

    def open_page(
        name: str = "study", size: tuple[int, int] = (1280, 900), **settings: object
    ) -> Any:
        viewport = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, **settings)
        context.set_default_timeout(5000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(pages[name])
        if settings.get("java_script_enabled", True):
            page.wait_for_selector(".plot svg", timeout=20_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if url not in pages.values() and url != "data:,"] == []
