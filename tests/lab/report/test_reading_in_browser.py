"""What a reader of a page gets in a real browser: by ear, on a phone, and in tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.report.browser_pages import CHROMIUM, Open
from risegrad.lab.records.record import read_records
from risegrad.lab.report.builder import build, write_report

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on PATH (on Debian: apt-get install chromium)"
)


def test_a_drawn_chart_says_what_it_shows_and_not_who_drew_it(opened: Open) -> None:
    page = opened("swept")
    plot = page.locator(".plot").first
    said = plot.get_attribute("aria-label")
    assert said.startswith("Forgetting against accuracy on new tasks for 3 methods. ")
    assert said.endswith("arrow keys read them out.")
    assert "Vega visualization" not in page.content().split("<script")[0]


@pytest.mark.parametrize("size", [(390, 844), (1280, 900)])
def test_the_words_of_the_headline_are_explained_between_it_and_the_figure(
    opened: Open, size: tuple[int, int]
) -> None:
    page = opened("swept", size=size)
    line = page.locator("figcaption small").first
    for word in ("New: ", "Fgt: ", "FO: "):
        assert word in line.inner_text()
    assert "ZO" not in line.inner_text(), "no method of this name"
    box, headline = line.bounding_box(), page.locator(".headline").first.bounding_box()
    plot = page.locator(".plot svg").first.bounding_box()
    assert headline["y"] + headline["height"] <= box["y"] <= box["y"] + box["height"] <= plot["y"]
    end = page.locator(".plot .role-axis-title").first.bounding_box()
    assert end["y"] + end["height"] <= size[1], "the figure's axes are on the first screen"


RECORDS = Path(__file__).parents[3] / "experiments" / "records"


@pytest.fixture(scope="module")
def real(pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Reports of records of the repository, whose names and numbers have their real lengths."""
    for name in ("turned-digits", "table1-cpu"):
        out = tmp_path_factory.mktemp("real") / f"{name}.html"
        write_report(build(read_records([RECORDS / name])[0]), out)
        pages[name] = out.as_uri()


OVERFLOW = "table => table.scrollWidth - table.clientWidth"
BROKEN = """table => [...table.querySelectorAll("th[scope=row] > span, td.text .main > span")]
  .flatMap((span) => [...span.textContent.matchAll(/[^\\s-]+/g)].filter((word) => {
    const range = document.createRange();
    range.setStart(span.firstChild, word.index);
    range.setEnd(span.firstChild, word.index + word[0].length);
    return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1;
  }).map((word) => word[0]))"""


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("size", [(390, 844), (1280, 900)])
def test_the_verdict_and_the_difference_are_seen_without_scrolling(
    opened: Open, size: tuple[int, int]
) -> None:
    page = opened("turned-digits", size=size)
    table = page.get_by_role("region", name="At equal learning")
    edge = table.bounding_box()
    heads = table.locator("thead th[scope=col]")
    assert heads.locator("button > span:first-child").all_inner_texts()[:3] == [
        "Method", "In words", "Difference",
    ]  # fmt: skip
    box = heads.nth(2).bounding_box()
    assert box["x"] + box["width"] <= edge["x"] + edge["width"]
    assert table.evaluate(BROKEN) == [], "no name is broken within a word"


@pytest.mark.usefixtures("real")
def test_wide_tables_fit_a_desktop(opened: Open) -> None:
    page = opened("turned-digits")
    page.get_by_text("At equal forgetting, and each method").first.click()
    table = page.get_by_role("region", name="The curves of turned-digits")
    assert table.evaluate(OVERFLOW) <= 0
    assert table.evaluate(BROKEN) == []


@pytest.mark.parametrize("size", [(390, 844), (1280, 900)])
def test_a_name_without_an_end_is_broken_and_does_not_push_the_figures_out(
    opened: Open, size: tuple[int, int]
) -> None:
    page = opened("hostile", size=size)
    name = page.get_by_role("region", name="Results of").locator("tbody th[scope=row]").last
    assert name.bounding_box()["width"] < 0.6 * size[0]


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("name", ["turned-digits", "table1-cpu"])
@pytest.mark.parametrize("size", [(390, 844), (1280, 900)])
def test_every_method_has_its_name_in_the_figure(
    opened: Open, name: str, size: tuple[int, int]
) -> None:
    plot = opened(name, size=size).locator(".plot").first
    wanted = plot.locator(".role-legend-label text").all_text_contents()
    assert len(wanted) >= 12
    assert set(wanted) <= set(plot.locator(".role-mark text").all_text_contents())
