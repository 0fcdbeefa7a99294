"""What only a browser finds: layout, drawing, keyboard, saving, and that nothing hostile runs.

Debian's chromium, driven by Playwright, without a network. Nothing waits for a time: each check
waits for what it looks for.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from report.made_up import chat_study, hostile, record, save, swept_study, whole_study
from riselab.records.record import RecordError, read_records
from riselab.report.builder import build, write_report
from tail import IN_PAGE

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on PATH (on Debian: apt-get install chromium)"
)
PHONE, DESKTOP, PROJECTOR = (390, 844), (1280, 900), (1920, 1080)
RECORDS = Path(__file__).parents[2] / "experiments" / "records"
Open = Callable[..., Any]
"""Opens a page by its name, at a size in pixels."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of a whole study, a sweep, a chat model, a hostile one, and real records."""
    folder = tmp_path_factory.mktemp("pages")
    whole_study(folder / "study")
    swept_study(folder / "swept")
    chat_study(folder / "chat")
    bad = [hostile(seed) for seed in range(3)]
    plain = [record("FO", s, experiment=bad[0]["experiment"], baseline=True) for s in range(3)]
    save(folder / "hostile", *bad, *plain)
    shutil.copytree(RECORDS / "turned-digits", folder / "turned-digits")
    addresses = {}
    for name in ("study", "swept", "chat", "hostile", "turned-digits"):
        records, _ = read_records([folder / name])
        problems = [RecordError(Path("broken <b>.json"), "is not complete JSON")]
        out = folder / f"{name}.html"
        write_report(build(records, problems), out)
        addresses[name] = out.as_uri()
    return addresses


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as tool:
        # No sandbox: tests also run as root in containers, where chromium has none.
        started = tool.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=IN_PAGE
        )
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, pages: dict[str, str]) -> Iterator[Open]:
    """Opens a page; in the end nothing was on the console and nothing but files was asked for."""
    complaints: list[str] = []
    requests: list[str] = []
    contexts = []

    def open_page(name: str = "study", size: tuple[int, int] = DESKTOP, **settings: object) -> Any:
        viewport = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, **settings)
        context.set_default_timeout(IN_PAGE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(pages[name])
        if settings.get("java_script_enabled", True):
            page.wait_for_selector(".plot svg")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if url not in pages.values() and url != "data:,"] == []


def first_column(table: Any) -> list[str]:
    return table.locator("tbody th[scope=row] > span").all_inner_texts()


def test_tables_sort_within_their_sections_by_click_and_by_keyboard(opened: Open) -> None:
    page = opened()
    table = page.get_by_role("region", name="Results of cifar100-inc5")
    original = first_column(table)
    button = table.get_by_role("button", name="Fgt")
    head = table.locator("th", has=page.get_by_role("button", name="Fgt"))
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert first_column(table)[:3] == ["EASE", "Adapter + Cls.", "ZO-FC + RISE"]
    button.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert first_column(table)[:2] == ["Adapter + Cls.", "EASE"]
    assert first_column(table)[-1] == "ZO-FC + RISE"
    titles = table.locator("tr.section").all_inner_texts()
    assert [title.strip() for title in titles] == ["FO Optimization", "ZO Optimization"]
    table.get_by_role("button", name="Method").click()
    assert head.get_attribute("aria-sort") == "none", "one column at a time"
    button.click()
    button.click()
    button.click()
    assert first_column(table) == original


def test_rows_without_a_figure_come_last_either_way(opened: Open) -> None:
    table = opened("turned-digits").get_by_role("region", name="At equal learning")
    button = table.get_by_role("button", name="MB kept")
    for _ in range(2):
        button.click()
        last = table.locator("tbody tr:not(.section)").last.locator("td").last
        assert last.inner_text().startswith("–")  # noqa: RUF001


@pytest.mark.parametrize("size", [PHONE, DESKTOP, PROJECTOR])
@pytest.mark.parametrize("name", ["swept", "chat"])
def test_the_finding_and_its_figure_are_on_the_first_screen(
    opened: Open, name: str, size: tuple[int, int]
) -> None:
    """Question, sentence, words, figure with its axes, one below the other; curves are named."""
    page = opened(name, size=size)
    bottom = 0.0
    for part in (".question", ".headline", "figcaption small", ".plot svg"):
        box = page.locator(part).first.bounding_box()
        assert box["y"] >= bottom - 1, part
        bottom = box["y"] + (0 if part == ".plot svg" else box["height"])
    end = page.locator(".plot .role-axis-title").first.bounding_box()
    assert end["y"] + end["height"] <= size[1]
    plot = page.locator(".plot").first
    wanted = {"swept": {"FO", "gentle"}, "chat": {"plain", "keep", "KL on dreams"}}[name]
    assert wanted <= set(plot.locator(".role-mark text").all_text_contents())
    assert plot.locator(".mark-area path").count() == len(wanted), "a band for each curve"


def test_of_many_methods_the_legend_tells_the_names(opened: Open) -> None:
    plot = opened("turned-digits", size=PHONE).locator(".plot").first
    assert len(plot.locator(".role-legend-label text").all_text_contents()) >= 12
    assert plot.locator(".role-mark text").count() == 0


def test_charts_tell_their_values_to_pointer_and_keyboard(opened: Open) -> None:
    page = opened()
    figure = page.locator("figure").first
    tip = figure.locator(".tip")
    assert not tip.is_visible()
    figure.locator("[aria-label^='ZO-FC + RISE: learns']").hover(force=True)
    assert tip.inner_text().startswith("ZO-FC + RISE: learns ")
    page.locator("h1").hover()
    tip.wait_for(state="hidden")
    figure.locator(".plot").focus()
    told = []
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowLeft", "End", "ArrowRight", "Home"):
        page.keyboard.press(key)
        told.append(tip.inner_text().split(":")[0])
    rows = ["Adapter + Cls.", "EASE", "ZO-FC, scaled FO"]
    assert told == [rows[k] for k in (0, 1, 0, 0, 2, 2, 0)]
    assert figure.locator(".active").count() == 1
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_folded_charts_are_drawn_when_they_are_opened(opened: Open) -> None:
    page = opened()
    drawn = page.locator(".plot svg").count()
    fold = page.locator("details.fold", has=page.locator("summary", has_text="matrices")).first
    fold.locator("summary").first.click()
    fold.locator(".plot svg").first.wait_for()
    assert page.locator(".plot svg").count() == drawn + 1
    cell = fold.locator("[aria-label*='after session 3, task 2 (classes 1)']").first
    cell.hover(force=True)
    assert "after session 3, task 2 (classes 1): " in fold.locator(".tip").inner_text()


def test_a_name_in_the_legend_shows_its_method_alone(opened: Open) -> None:
    plot = opened().locator(".plot").first
    opacities = "all => all.map(p => Number(p.getAttribute('opacity')))"
    marks = plot.locator("path[aria-label*='learns']")
    assert set(marks.evaluate_all(opacities)) == {1}
    plot.locator(".role-legend text", has_text="EASE").click()
    plot.locator("path[opacity='0.12']").first.wait_for()
    assert [value == 1 for value in marks.evaluate_all(opacities)].index(True) == 1
    plot.click(position={"x": 300, "y": 200})
    plot.locator("path[opacity='0.12']").first.wait_for(state="detached")


@pytest.mark.parametrize(("kind", "start"), [("SVG", b"<svg"), ("PNG", b"\x89PNG")])
def test_charts_can_be_saved(opened: Open, kind: str, start: bytes) -> None:
    page = opened(color_scheme="dark")
    with page.expect_download() as waiting:
        page.get_by_role("button", name=f"Save {kind}").first.click()
    assert waiting.value.suggested_filename == f"cifar100-inc5-frontier.{kind.lower()}"
    content = Path(waiting.value.path()).read_bytes()
    assert content.startswith(start)
    assert kind == "PNG" or b"#12161c" not in content  # light, for papers


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
def test_light_and_dark_follow_the_system_and_the_button(opened: Open, scheme: str) -> None:
    page = opened(color_scheme=scheme)
    grounds = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}
    inks = {"light": "#526073", "dark": "#a5b2c2"}
    other = {"light": "dark", "dark": "light"}[scheme]
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == grounds[scheme]
    assert page.evaluate(CONTRAST) == []
    page.wait_for_selector(f".plot .role-axis-label text[fill='{inks[scheme]}']")
    page.get_by_role("button", name=other.capitalize(), exact=True).click()
    assert page.evaluate(ground) == grounds[other]
    page.wait_for_selector(f".plot .role-axis-label text[fill='{inks[other]}']")
    page.get_by_role("button", name=scheme.capitalize(), exact=True).wait_for()
    page.reload()
    assert page.evaluate(ground) == grounds[other]


CUT = """plot => [...plot.querySelectorAll("text")].filter((t) => {
  const [a, b] = [t.getBoundingClientRect(), plot.getBoundingClientRect()];
  return a.left < b.left - 1 || a.right > b.right + 1;
}).map((t) => t.textContent)"""


@pytest.mark.parametrize("size", [PHONE, PROJECTOR], ids=["phone", "projector"])
@pytest.mark.parametrize("name", ["study", "hostile", "chat"])
def test_nothing_scrolls_sideways_and_text_can_be_read(
    opened: Open, name: str, size: tuple[int, int]
) -> None:
    page = opened(name, size)
    plot = page.locator(".plot").first
    assert name == "hostile" or plot.evaluate(CUT) == []
    small = plot.locator("svg text").evaluate_all(
        "all => all.map(t => parseFloat(t.getAttribute('font-size')))"
    )
    assert min(small) >= (12 if size == PHONE else 17)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    text = page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")
    assert text >= (16 if size == PHONE else 22)


def test_reduced_motion_is_respected(opened: Open) -> None:
    code = "getComputedStyle(document.documentElement).scrollBehavior"
    assert opened().evaluate(code) == "smooth"
    assert opened(reduced_motion="reduce").evaluate(code) == "auto"


def test_everything_that_acts_can_be_reached_in_order_and_has_a_name(opened: Open) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    places = []
    for _ in range(11):
        page.keyboard.press("Tab")
        places.append(page.evaluate("document.activeElement.getBoundingClientRect().top + scrollY"))
    assert places == sorted(places)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a, summary, [tabindex='0']")]
        .filter((e) => !(e.ariaLabel || e.textContent.trim()
          || document.getElementById(e.getAttribute("aria-labelledby"))?.textContent))
        .map((e) => e.outerHTML)"""
    )
    assert nameless == []
    said = page.locator(".plot").first.get_attribute("aria-label")
    assert said.endswith("arrow keys read them out."), "and not what Vega says of itself"


def test_hostile_text_does_not_run(opened: Open) -> None:
    page = opened("hostile")
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.wait_for_selector(".plot:not(:has(svg))", state="detached")
    for button in page.locator("thead button").all()[:6]:
        button.click()
    for plot in page.locator(".plot").all():
        plot.focus()
        page.keyboard.press("End")
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save SVG").first.click()
    assert "<script" not in Path(waiting.value.path()).read_text(encoding="utf-8")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    assert "</script><script>" in page.locator("h1").inner_text()
    assert "</script><script>" in page.locator(".plot text").last.evaluate(
        "t => t.ownerSVGElement.textContent"
    )


def test_the_policy_stops_scripts_that_were_not_written_here(
    browser: Any, pages: dict[str, str], tmp_path: Path
) -> None:
    """Even if escaping failed: a script that is in the file does not run."""
    source = Path(pages["study"].removeprefix("file://")).read_text(encoding="utf-8")
    bad = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
    target = tmp_path / "worse.html"
    target.write_text(source.replace("<main", f"{bad}<main", 1), encoding="utf-8")
    page = browser.new_page()
    page.goto(target.as_uri())
    page.wait_for_load_state("load")
    page.locator("img").wait_for(state="attached")
    assert page.evaluate("window.hacked") is None
    page.close()


def test_without_scripts_every_number_is_there(opened: Open) -> None:
    page = opened(java_script_enabled=False)
    figure = page.locator("figure").first
    assert "needs scripts" in figure.locator("noscript").inner_text()
    assert "ZO-FC + RISE" in page.locator("#p1 table").last.inner_text()
    figure.locator("summary").click()
    assert "ZO-FC + RISE" in figure.locator("table").inner_text()


OVERFLOW = "table => table.scrollWidth - table.clientWidth"
BROKEN = """table => [...table.querySelectorAll("th[scope=row] > span, td.text .main > span")]
  .flatMap((span) => [...span.textContent.matchAll(/[^\\s-]+/g)].filter((word) => {
    const range = document.createRange();
    range.setStart(span.firstChild, word.index);
    range.setEnd(span.firstChild, word.index + word[0].length);
    return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1;
  }).map((word) => word[0]))"""


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_verdict_and_the_difference_are_seen_without_scrolling(
    opened: Open, size: tuple[int, int]
) -> None:
    """Names of records of the repository, with their real lengths."""
    page = opened("turned-digits", size=size)
    table = page.get_by_role("region", name="At equal learning")
    edge = table.bounding_box()
    heads = table.locator("thead th[scope=col]")
    titles = heads.locator("button > span:first-child").all_inner_texts()
    assert titles[:3] == ["Method", "In words", "Difference"]
    box = heads.nth(2).bounding_box()
    assert box["x"] + box["width"] <= edge["x"] + edge["width"]
    assert table.evaluate(BROKEN) == [], "no name is broken within a word"
    assert size == PHONE or table.evaluate(OVERFLOW) <= 0
    row = table.locator("tbody tr", has_text="RISE").last
    assert row.inner_text().count("not clearly different") == 1
    assert "open" not in row.inner_text(), "it says it once"


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_name_without_an_end_is_broken_and_does_not_push_the_figures_out(
    opened: Open, size: tuple[int, int]
) -> None:
    page = opened("hostile", size=size)
    name = page.get_by_role("region", name="Results of").locator("tbody th[scope=row]").last
    assert name.bounding_box()["width"] < 0.6 * size[0]
