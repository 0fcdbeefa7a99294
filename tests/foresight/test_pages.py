"""The pages of a diagnosis and of a local validation, from the records that are kept."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from risegrad.curvature.estimates.estimated import Estimate
from risegrad.foresight.block_lines import short_names
from risegrad.foresight.diagnosis_page import diagnosis_page, diagnosis_parts
from risegrad.foresight.diagnosis_report import Diagnosis
from risegrad.foresight.rule_forecast import RuleForecast
from risegrad.pages.page import Fold

RECORDS = Path(__file__).parents[2] / "experiments" / "records" / "diagnosis"


@pytest.fixture(scope="module")
def found():
    """As one of a user's model with blocks alone: no rules, no rows."""
    saved = Diagnosis.from_dict(json.loads((RECORDS / "cifar100-within.json").read_text()))
    return replace(saved, rules=(), rows=(), left_out=(), verdicts=())


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


def chunked(found, layers, chunks):
    """Many blocks with names as chunks of LoRA tensors have them; no two have the same numbers."""
    names = [f"<b>.{n}.attention.{m}.lora.weight" for n in range(layers) for m in "qv"]
    every = [f"{name}[{k}]" for name in names for k in range(chunks)]
    value = found.blocks[0].S.value
    return replace(found, blocks=tuple(
        replace(found.blocks[0], name=name, S=Estimate(value * (n + 1), value), C=None, R=None)
        for n, name in enumerate(every)
    ))  # fmt: skip


def block_lines(found):
    (fold,) = [block for block in diagnosis_parts(found)[2].blocks if isinstance(block, Fold)]
    (table,) = fold.blocks
    return table


def test_few_blocks_have_a_line_each_under_their_pattern(found):
    table = block_lines(chunked(found, 2, 3))
    assert [column.title for column in table.columns] == ["lambda_dir", "lambda_avg", "S"]
    q, v = table.sections
    assert (q.title, v.title) == tuple(
        f"{name}: d 24,576, q 4, factor 0.0128" for name in ("q", "v")
    )
    assert [line.label for line in q.lines] == [
        "all 6", "<b>.0[0]", "<b>.0[1]", "<b>.0[2]", "<b>.1[0]", "<b>.1[1]", "<b>.1[2]"
    ]  # fmt: skip
    text = diagnosis_page(chunked(found, 2, 3))
    assert "<b>" not in text[: text.index("<script>")]


def test_many_blocks_have_a_line_for_each_tensor(found):
    many = chunked(found, 4, 20)
    q, _ = block_lines(many).sections
    assert q.title == "q: 20 blocks of d 24,576, q 4, factor 0.0128"
    assert [line.label for line in q.lines] == ["all 4", *(f"<b>.{n}" for n in range(4))]
    value = found.blocks[0].S.value
    own = [block.S.value for block in many.blocks if block.name.startswith("<b>.1.attention.q.")]
    assert [min(own), max(own)] == [pytest.approx(value * 41), pytest.approx(value * 60)]
    low, _, high = q.lines[2].cells[2].text.split()
    assert (float(low), float(high)) == (pytest.approx(min(own), rel=0.05),
                                         pytest.approx(max(own), rel=0.05))  # fmt: skip


def test_very_many_blocks_have_a_line_for_each_pattern(found):
    (section,) = block_lines(chunked(found, 110, 2)).sections
    assert [line.label for line in section.lines] == ["q", "v"]
    assert section.lines[0].note == "220 blocks of d 24,576, q 4, factor 0.0128"


def test_the_page_of_very_many_blocks_is_small(found):
    """5,376 blocks made a page of 15 MB, because their table stood there three times."""
    many, few = diagnosis_page(chunked(found, 84, 32)), diagnosis_page(chunked(found, 2, 3))
    assert len(many) < len(few) + 100_000
    assert many.count("<tr>") < 300


def test_names_are_cut_in_the_middle_and_stay_distinct():
    names = [
        f"{side}.block.{n}.layer.{k}.{kind}Attention.q.lora_B.default.weight[{c}]"
        for side in ("encoder", "decoder") for n in range(8)
        for k, kind in ((0, "Self"), (1, "EncDec")) for c in (1, 24)
    ]  # fmt: skip
    found = short_names(names)
    assert len(set(found)) == len(names)
    assert max(map(len, found)) <= 22
    assert found[0] == "encoder.0.0…tention[1]"
    assert short_names(["one"]) == ["one"]
    alike = ["a" * 40 + "0" + "b" * 40, "a" * 40 + "1" + "b" * 40]
    assert len(set(short_names(alike))) == 2


def test_empty_columns_are_not_shown(found):
    assert " C " in f"{found} "
    text = str(chunked(found, 2, 3))
    head = next(line.split() for line in text.splitlines() if line.startswith("block "))
    assert head == ["block", "d", "q", "tau", "factor", "lambda_dir", "lambda_avg", "S"]


def forecast(name, share, error=0.0):
    even = Estimate(1.0)
    return RuleForecast(name, Estimate(share, error), even, even, even, 1.0)


def test_damage_is_not_drawn_below_zero(found):
    rules = (forecast("FO", 1.0), forecast("informed", 0.1, 0.6))
    part = diagnosis_parts(replace(found, rules=rules))[0]
    rows = part.blocks[0].blocks[0].spec()["datasets"]["rows"]
    assert [row["low"] for row in rows] == [1.0, 0.0]


def test_every_table_of_rules_says_what_it_is_of(found):
    """Rules and rows have the same names and other numbers."""
    rules = (forecast("FO", 1.0), forecast("RISE", 1.5))
    rows = (forecast("FO (lr=0.1)", 1.0), forecast("RISE (lr=0.3)", 1.2))
    left = ("EWC (additions differ)", "informed (it needs a memory, and this run keeps none)")
    both = replace(found, rules=rules, rows=rows, left_out=left, subject="tiny, RISE, seed 0")
    text, page = " ".join(str(both).split()), diagnosis_page(both)
    for shown in (text, page):
        assert "in parts of that of the plain step, FO" in shown
        assert "rows as they run, at equal first-order progress" in shown
        assert "damage per progress in parts of that of FO (lr=0.1)" in shown
        assert "not at equal progress" in shown
        assert f"Not compared: {'; '.join(left)}." in shown
    assert page.count("tiny, RISE, seed 0") >= 2
    assert Diagnosis.from_dict(both.to_dict()).left_out == left
    assert "lr=0.3" in both._repr_html_()


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
        page.set_viewport_size({"width": 1280, "height": 900})
        page.locator("summary", has_text="Numbers of the blocks").click()
        frame = page.locator("details.fold .frame")
        assert frame.evaluate("frame => frame.scrollWidth - frame.clientWidth") == 0
        rules = (
            page.locator(".plot")
            .first.locator("[aria-label]")
            .evaluate_all("all => all.map(e => e.getAttribute('aria-label'))")
        )
        browser.close()
    assert any(re.match("scaled FO: ", label) for label in rules)
    assert [text for text in said if text not in {path.as_uri(), "data:,"}] == []
