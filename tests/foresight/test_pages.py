"""The pages of a diagnosis and of a local validation, from the records that are kept."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from risegrad.common.settings import read
from risegrad.curvature.estimates.estimated import Estimate
from risegrad.foresight.diagnosis_page import diagnosis_page
from risegrad.foresight.diagnosis_report import Diagnosis

RECORDS = Path(__file__).parents[2] / "experiments" / "records" / "diagnosis"


@pytest.fixture(scope="module")
def found():
    return read(Diagnosis, json.loads((RECORDS / "vit.json").read_text()))


def with_totals(found, rise, scaled, cost):
    totals = replace(
        found.totals, rise=Estimate(rise), scaled_fo=Estimate(scaled), progress_cost=cost
    )
    return replace(found, totals=totals)


@pytest.mark.parametrize(
    ("rise", "scaled", "cost", "said"),
    [
        (4.0, 1.0, Estimate(3.0, 0.1), "(FO) step: at equal progress it does 0.25 times the"),
        (1.0, 1.0, Estimate(0.1, 0.1), "do not differ beyond the error"),
        (-2.0, 1.0, Estimate(-3.0, 0.1), "Use RISE: at equal progress its damage is -2, first"),
    ],
)  # fmt: skip
def test_the_decision_is_by_equal_progress(found, rise, scaled, cost, said):
    assert said in with_totals(found, rise, scaled, cost).decision


def test_a_zero_gradient_decides_nothing(found):
    still = replace(found, totals=replace(found.totals, fo_progress=0.0))
    assert still.decision == "The incoming gradient is zero: no rule would move anything."


def test_the_decision_comes_first_and_equal_progress_before_equal_length(found):
    text = diagnosis_page(found)
    places = [
        text.index(words)
        for words in (found.decision, "At equal progress: predicted", "At equal step length: pred")
    ]
    assert places == sorted(places)


def test_blocks_with_the_same_numbers_share_a_line(found):
    block = found.blocks[0]
    alike = tuple(replace(block, name=f"<b>{k}") for k in range(5))
    text = diagnosis_page(replace(found, blocks=alike))
    text = text[: text.index("<script>")]
    assert "&lt;b&gt;0 and 4 alike" in text
    assert "<b>" not in text


def test_in_a_browser(found, tmp_path):
    """Drawn without a complaint and without a request, on a phone too."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on PATH (on Debian: apt-get install chromium)")
    path = tmp_path / "diagnosis.html"
    path.write_text(diagnosis_page(found), encoding="utf-8")
    said = []
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector(".plot:not(:has(svg))", state="detached")
        assert page.locator(".plot svg").count() == 4
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        rules = (
            page.locator(".plot")
            .first.locator("[aria-label]")
            .evaluate_all("all => all.map(e => e.getAttribute('aria-label'))")
        )
        browser.close()
    assert any(re.match("scaled FO: ", label) for label in rules)
    assert [text for text in said if text not in {path.as_uri(), "data:,"}] == []
