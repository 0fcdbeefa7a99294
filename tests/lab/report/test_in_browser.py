"""The page in a real browser: Debian's chromium, driven by Playwright, without a network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.report.made_up import hostile, record, save, whole_study
from risegrad.lab.records import RecordError, read_records
from risegrad.lab.report.report import build
from risegrad.lab.report.write import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on PATH (on Debian: apt-get install chromium)"
)

PHONE, PROJECTOR = (375, 812), (1920, 1080)
Open = Callable[..., "playwright.Page"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of a whole study and of a hostile one."""
    folder = tmp_path_factory.mktemp("pages")
    whole_study(folder / "study")
    bad = [hostile(seed) for seed in range(3)]
    plain = [
        record("FO", seed, experiment=bad[0]["experiment"], baseline=True) for seed in range(3)
    ]
    save(folder / "hostile", *bad, *plain)
    addresses = {}
    for name in ("study", "hostile"):
        records, _ = read_records([folder / name])
        problems = [RecordError("broken <b>.json", "is not complete JSON")]
        out = folder / f"{name}.html"
        write_report(build(records, problems), out)
        addresses[name] = out.as_uri()
    return addresses


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as tool:
        # No sandbox: tests also run as root in containers, where chromium has none.
        started = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: playwright.Browser, pages: dict[str, str]) -> Iterator[Open]:
    """Opens a page; in the end nothing was on the console and nothing but files was asked for."""
    complaints: list[str] = []
    requests: list[str] = []
    contexts = []

    def open_page(
        name: str = "study", size: tuple[int, int] = (1280, 900), **settings: object
    ) -> playwright.Page:
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
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if url not in pages.values() and url != "data:,"] == []


def results(page: playwright.Page) -> playwright.Locator:
    return page.get_by_role("region", name="Results of cifar100-inc5")


def first_column(table: playwright.Locator) -> list[str]:
    return table.locator("tbody th[scope=row] > span").all_inner_texts()


def test_tables_sort_by_click_within_their_sections(opened: Open) -> None:
    page = opened()
    table = results(page)
    original = first_column(table)
    button = table.get_by_role("button", name="Fgt")
    head = table.locator("th", has=page.get_by_role("button", name="Fgt"))
    assert head.get_attribute("aria-sort") == "none"
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert first_column(table)[:2] == ["EASE", "Adapter + Cls."]
    assert first_column(table)[2] == "ZO-FC + RISE"
    button.click()
    assert head.get_attribute("aria-sort") == "descending"
    assert first_column(table)[:2] == ["Adapter + Cls.", "EASE"]
    assert first_column(table)[-1] == "ZO-FC + RISE"
    titles = table.locator("tr.section").all_inner_texts()
    assert [title.strip() for title in titles] == ["FO Optimization", "ZO Optimization"]
    button.click()
    assert head.get_attribute("aria-sort") == "none"
    assert first_column(table) == original


def test_tables_sort_by_keyboard_and_one_column_at_a_time(opened: Open) -> None:
    page = opened()
    table = results(page)
    table.get_by_role("button", name="Method").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert first_column(table)[:2] == ["EASE", "Adapter + Cls."]
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    sorts = table.locator("thead th").evaluate_all("all => all.map(th => th.ariaSort)")
    assert sorts[:3] == ["none", "ascending", "none"]
    assert first_column(table)[:2] == ["Adapter + Cls.", "EASE"]


def test_rows_without_a_figure_come_last_either_way(opened: Open) -> None:
    table = opened().get_by_role("region", name="Table 1 of the paper")
    button = table.get_by_role("button", name="Avg")
    for _ in range(2):
        button.click()
        assert set(first_column(table)[2:4]) == {"Learnable Cls.", "APER Adapter"}


def test_plots_tell_their_values_to_the_pointer(opened: Open) -> None:
    page = opened()
    figure = page.locator("figure", has=page.locator(".plot.frontier")).first
    readout = figure.locator("output")
    assert "arrow keys" in readout.inner_text()
    figure.locator(".mark").nth(3).hover(force=True)
    assert readout.inner_text().startswith("ZO-FC + RISE: forgetting ")
    assert figure.locator(".mark.active").count() == 1
    page.get_by_role("heading", name="RISE report").hover()
    assert "arrow keys" in readout.inner_text()


def test_plots_tell_their_values_to_the_keyboard(opened: Open) -> None:
    page = opened()
    figure = page.locator("figure", has=page.locator(".plot.heat")).first
    readout = figure.locator("output")
    figure.locator(".plot").focus()
    assert readout.inner_text().startswith("after session 1, task 1 (classes 0): ")
    for key, place in [
        ("ArrowRight", "after session 2, task 1 "),
        ("ArrowRight", "after session 2, task 2 "),
        ("ArrowDown", "after session 3, task 2 "),
        ("ArrowUp", "after session 2, task 2 "),
        ("End", "after session 6, task 6 "),
        ("ArrowRight", "after session 6, task 6 "),
        ("Home", "after session 1, task 1 "),
    ]:
        page.keyboard.press(key)
        assert readout.inner_text().startswith(place)
    page.keyboard.press("Escape")
    assert "arrow keys" in readout.inner_text()


def test_the_legend_hides_and_shows_series(opened: Open) -> None:
    page = opened()
    figure = page.locator("figure", has=page.locator(".plot.stream")).first
    entry = figure.get_by_role("button", name="EASE")
    series = figure.locator("g.series[data-series='1']")
    assert series.is_visible()
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert not series.is_visible()
    figure.locator(".plot").focus()
    told = set()
    for _ in range(12):  # two series of six sessions
        told.add(figure.locator("output").inner_text().split(",")[0])
        page.keyboard.press("ArrowRight")
    assert told == {"Adapter + Cls.", "ZO-FC"}
    entry.focus()
    page.keyboard.press("Space")
    assert entry.get_attribute("aria-pressed") == "true"
    assert series.is_visible()


def test_the_sweep_over_queries_is_drawn_beside_the_papers(opened: Open) -> None:
    page = opened()
    accuracy, forgetting = page.locator("figure", has=page.locator(".plot.queries")).all()
    accuracy.locator(".mark").first.hover(force=True)
    assert accuracy.locator("output").inner_text().startswith("q = 1: average accuracy ")
    assert accuracy.locator("g.series").count() == 4
    forgetting.locator(".mark").last.hover(force=True)
    assert forgetting.locator("output").inner_text() == "q = 64: forgetting (paper) 6.46 %"


def background(page: playwright.Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_and_the_button(opened: Open, scheme: str) -> None:
    page = opened(color_scheme=scheme)
    grounds = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}
    other = {"light": "dark", "dark": "light"}[scheme]
    button = page.get_by_role("button", name="Dark")
    assert background(page) == grounds[scheme]
    assert button.get_attribute("aria-pressed") == str(scheme == "dark").lower()
    button.click()
    assert background(page) == grounds[other]
    assert button.get_attribute("aria-pressed") == str(other == "dark").lower()
    page.reload()
    assert background(page) == grounds[other]


CONTRAST = """() => {
  const parse = (c) => c.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const e of document.querySelectorAll("p, li, td span, th span, h1, h2, h3, h4, a, button")) {
    if (!e.textContent.trim() || !e.checkVisibility()) continue;
    if (getComputedStyle(e).opacity < 1) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${e.tagName} ${e.textContent}`);
  }
  return low;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(opened: Open, scheme: str) -> None:
    assert opened(color_scheme=scheme).evaluate(CONTRAST) == []


@pytest.mark.parametrize("size", [PHONE, PROJECTOR], ids=["phone", "projector"])
@pytest.mark.parametrize("name", ["study", "hostile"])
def test_the_page_itself_never_scrolls_sideways(
    opened: Open, name: str, size: tuple[int, int]
) -> None:
    page = opened(name, size)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    text = page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")
    assert text >= (16 if size == PHONE else 22)


def test_labels_in_plots_are_readable_on_a_phone(opened: Open) -> None:
    page = opened(size=PHONE)
    heights = page.locator(".plot text").evaluate_all(
        "all => all.filter(t => t.checkVisibility()).map(t => t.getBoundingClientRect().height)"
    )
    assert heights
    assert (
        page.evaluate("document.querySelector('.plot.stream').getBoundingClientRect().width") > 300
    )


def test_reduced_motion_is_respected(opened: Open) -> None:
    code = "getComputedStyle(document.documentElement).scrollBehavior"
    assert opened().evaluate(code) == "smooth"
    assert opened(reduced_motion="reduce").evaluate(code) == "auto"


def test_everything_that_acts_can_be_reached_and_has_a_name(opened: Open) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results"
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a, summary, [tabindex='0']")]
        .filter((e) => !(e.ariaLabel || e.textContent.trim()
          || document.getElementById(e.getAttribute("aria-labelledby"))?.textContent))
        .map((e) => e.outerHTML)"""
    )
    assert nameless == []


def test_broken_files_are_named_on_the_page(opened: Open) -> None:
    warning = opened().get_by_role("region", name="Files left out")
    assert "broken <b>.json: is not complete JSON" in warning.inner_text()


def test_words_say_who_wins_and_who_does_not(opened: Open) -> None:
    page = opened()
    found = page.locator(".finding.worse").first.inner_text()
    assert "Worse than the baseline: the 95% interval excludes zero" in found
    assert "ZO-FC + covariance noise: last accuracy −" in found  # noqa: RUF001
    assert "includes zero" in page.locator(".finding.open").first.inner_text()


def test_hostile_text_does_not_run(opened: Open) -> None:
    page = opened("hostile")
    for button in page.locator("thead button").all()[:6]:
        button.click()
    page.locator(".mark").first.hover(force=True)
    page.locator("[data-toggles]").first.click()
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert "</script><script>" in page.locator("#e1 h2").inner_text()


def test_the_policy_stops_scripts_that_were_not_written_here(
    browser: playwright.Browser, pages: dict[str, str], tmp_path: Path
) -> None:
    """Even if escaping failed: a script that is in the file does not run."""
    source = Path(pages["study"].removeprefix("file://")).read_text(encoding="utf-8")
    bad = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
    target = tmp_path / "worse.html"
    target.write_text(source.replace("<main", f"{bad}<main", 1), encoding="utf-8")
    page = browser.new_page()
    page.goto(target.as_uri())
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    page.close()


def test_the_numbers_can_be_taken_away(opened: Open) -> None:
    page = opened()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Numbers (JSON)").click()
    data = json.loads(Path(waiting.value.path()).read_text(encoding="utf-8"))
    assert len(data["experiments"]) == 3


def test_the_page_is_complete_without_scripts(opened: Open) -> None:
    page = opened(java_script_enabled=False)
    assert page.locator(".plot.stream .line").first.is_visible()
    assert "ZO-FC + RISE" in page.locator("#e1 table").first.inner_text()
