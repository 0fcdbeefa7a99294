"""The page in a real browser: Debian's chromium, driven by Playwright, without a network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.report.browser_pages import CHROMIUM, Open
from lab.report.made_up import record, save
from risegrad.lab.records.record import read_records
from risegrad.lab.report.builder import build, write_report

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on PATH (on Debian: apt-get install chromium)"
)

PHONE, PROJECTOR = (375, 812), (1920, 1080)


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


def first_chart(page: playwright.Page) -> playwright.Locator:
    return page.locator("figure").first


def unfolded(page: playwright.Page, title: str, number: int = 0) -> playwright.Locator:
    """The details of this title, open, with their charts drawn."""
    fold = page.locator("details.fold", has=page.locator("summary", has_text=title)).nth(number)
    fold.locator("summary").first.click()
    fold.locator(".plot svg").first.wait_for()
    return fold


def test_the_first_screen_says_what_was_found_and_shows_it(opened: Open) -> None:
    """At ten seconds: question, finding and the main figure, without scrolling."""
    page = opened()
    finding = page.locator(".headline").first
    assert "Average accuracy against ZO-FC: " in finding.inner_text()
    assert "Which method forgets least" in page.locator(".question").first.inner_text()
    for part in (finding, page.locator(".plot .role-axis-title").first):
        box = part.bounding_box()
        assert box is not None
        assert box["y"] >= 0
        assert box["y"] + box["height"] < 900
    assert "lower is better" in first_chart(page).inner_text()
    assert "Right and low is better" in first_chart(page).inner_text()


def test_the_finding_and_the_figure_begin_on_the_first_screen_of_a_phone(opened: Open) -> None:
    page = opened(size=(390, 844))
    box = page.locator(".plot .role-axis").first.bounding_box()
    assert box is not None
    assert box["y"] < 600


@pytest.mark.parametrize("size", [(390, 844), (1280, 800), PROJECTOR])
def test_the_finding_at_equal_learning_is_on_every_first_screen(
    opened: Open, size: tuple[int, int]
) -> None:
    """Question, sentence and the axis of the figure; curves have bands and names beside them."""
    page = opened("swept", size=size)
    for part in (".question", ".headline", ".plot .role-axis-title"):
        box = page.locator(part).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < size[1], part
    assert "At equal learning (80.0 % on new tasks), gentle forgets 10.0" in (
        page.locator(".headline").first.inner_text()
    )
    plot = page.locator(".plot").first
    named = plot.locator(".role-mark text").all_text_contents()
    assert {"FO", "gentle"} <= set(named), "directly, not in the legend only"
    assert plot.locator(".mark-area path").count() == 2, "a band for each curve that was read"


def test_charts_tell_their_values_to_the_pointer(opened: Open) -> None:
    page = opened()
    figure = first_chart(page)
    tip = figure.locator(".tip")
    assert not tip.is_visible()
    figure.locator("[aria-label^='ZO-FC + RISE: learned']").hover(force=True)
    assert tip.inner_text().startswith("ZO-FC + RISE: learned ")
    page.locator("h1").hover()
    assert not tip.is_visible()


def test_charts_tell_their_values_to_the_keyboard(opened: Open) -> None:
    page = opened()
    figure = first_chart(page)
    figure.locator(".plot").focus()
    told = []
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowLeft", "End", "ArrowRight", "Home"):
        page.keyboard.press(key)
        told.append(figure.locator(".tip").inner_text().split(":")[0])
    rows = ["Adapter + Cls.", "EASE", "ZO-FC, scaled FO"]
    assert told == [rows[k] for k in (0, 1, 0, 0, 2, 2, 0)]
    assert figure.locator(".active").count() == 1
    page.keyboard.press("Escape")
    assert not figure.locator(".tip").is_visible()


def test_folded_charts_are_drawn_when_they_are_opened(opened: Open) -> None:
    page = opened()
    drawn = page.locator(".plot svg").count()
    fold = unfolded(page, "Accuracy matrices")
    assert page.locator(".plot svg").count() == drawn + 1
    cell = fold.locator("[aria-label*='after session 3, task 2 (classes 1)']").first
    cell.hover(force=True)
    assert "after session 3, task 2 (classes 1): " in fold.locator(".tip").inner_text()


def test_the_sweep_over_queries_is_drawn_beside_the_papers(opened: Open) -> None:
    page = opened()
    fold = unfolded(page, "over the number of queries", number=1)
    assert fold.locator("figure").count() == 4  # the stream, then each metric of the paper
    forgetting = fold.locator("figure").last
    forgetting.locator(".plot").focus()
    page.keyboard.press("End")
    assert forgetting.locator(".tip").inner_text() == "q = 64: forgetting (paper) 6.46 %"
    texts = forgetting.locator(".role-legend text").all_text_contents()
    assert texts == ["RISE", "the paper's runs"]


def test_twenty_one_rows_have_different_marks(
    opened: Open, pages: dict[str, str], tmp_path: Path
) -> None:
    rows = [record(f"row {k}", seed, start=60.0 + k) for k in range(21) for seed in range(2)]
    records, _ = read_records(save(tmp_path, *rows))
    write_report(build(records), tmp_path / "many.html")
    pages["many"] = (tmp_path / "many.html").as_uri()
    page = opened("many")
    looks = (
        page.locator(".plot")
        .first.locator(".role-legend-symbol path")
        .evaluate_all("all => all.map(p => p.getAttribute('d') + p.getAttribute('fill'))")
    )
    assert len(looks) == 21
    assert len(set(looks)) == 21
    in_chart = (
        page.locator(".plot")
        .first.locator("path[aria-label^='row ']")
        .evaluate_all("all => all.map(p => p.getAttribute('fill'))")
    )
    assert len(in_chart) == 21
    # The same method has the same colour in the next chart.
    fold = unfolded(page, "Accuracy over the stream")
    again = fold.locator("path[aria-label^='row '][aria-label*='session 1:']").evaluate_all(
        "all => all.map(p => p.getAttribute('fill'))"
    )
    assert again == in_chart


def test_a_name_in_the_legend_shows_its_method_alone(opened: Open) -> None:
    page = opened()
    plot = page.locator(".plot").first
    opacities = "all => all.map(p => Number(p.getAttribute('opacity')))"
    marks = plot.locator("path[aria-label*='learned']")
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
        first_chart(page).get_by_role("button", name=f"Save {kind}").click()
    assert waiting.value.suggested_filename == f"cifar100-inc5-frontier.{kind.lower()}"
    content = Path(waiting.value.path()).read_bytes()
    assert content.startswith(start)
    assert kind == "PNG" or b"#12161c" not in content  # light, for papers


def test_the_keyboard_comes_by_in_the_order_of_the_page(opened: Open) -> None:
    page = opened()
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.getBoundingClientRect().top + scrollY"))
    content = seen[1:]  # the link to the results lies outside until it is focused
    assert content == sorted(content)
    assert page.evaluate("document.activeElement !== document.body")


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


@pytest.mark.parametrize("size", [PHONE, PROJECTOR], ids=["phone", "projector"])
def test_text_in_charts_is_readable_and_not_cut(opened: Open, size: tuple[int, int]) -> None:
    page = opened(size=size)
    small = page.locator(".plot svg text").evaluate_all(
        "all => all.map(t => parseFloat(t.getAttribute('font-size')))"
    )
    assert min(small) >= (12 if size == PHONE else 17)
    cut = page.locator(".plot").first.evaluate(
        """plot => [...plot.querySelectorAll("text")].filter((t) => {
          const [a, b] = [t.getBoundingClientRect(), plot.getBoundingClientRect()];
          return a.left < b.left - 1 || a.right > b.right + 1;
        }).map((t) => t.textContent)"""
    )
    assert cut == []


def test_charts_follow_the_theme(opened: Open) -> None:
    page = opened(color_scheme="light")
    label = page.locator(".plot .role-axis-label text").first
    assert label.get_attribute("fill") == "#526073"
    page.get_by_role("button", name="Dark").click()
    page.wait_for_selector(".plot .role-axis-label text[fill='#a5b2c2']")


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
    found = page.locator(".items.worse").first.text_content()
    assert found is not None
    assert "Worse than the baseline: the 95% interval excludes zero" in found
    assert "ZO-FC + covariance noise: last accuracy −" in found  # noqa: RUF001
    assert "includes zero" in (page.locator(".items.open").first.text_content() or "")


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
    assert page.locator("script").count() == 3
    assert "</script><script>" in page.locator("h1").inner_text()
    assert "</script><script>" in page.locator(".plot text").last.evaluate(
        "t => t.ownerSVGElement.textContent"
    )


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


def test_without_scripts_every_number_is_there(opened: Open) -> None:
    page = opened(java_script_enabled=False)
    assert "needs scripts" in page.locator("figure noscript").first.inner_text()
    assert "ZO-FC + RISE" in page.locator("#p1 table").last.inner_text()
    first_chart(page).locator("summary").click()
    assert "ZO-FC + RISE" in first_chart(page).locator("table").inner_text()
