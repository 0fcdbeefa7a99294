"""What a found frontier looks like: order of lines, bands, words, and the block of code."""

import re
from html import unescape
from pathlib import Path

import pytest

import risegrad
from frontier import own_problems
from riselab.frontier.problem import FrontierSettings
from riselab.report.figures import bands_of

SETTINGS = FrontierSettings(seeds=3, rates=5, epochs=30)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return risegrad.frontier(
        own_problems.problem, methods=("adamw", "interpolation"), minutes=30,
        out=tmp_path_factory.mktemp("page"), settings=SETTINGS, show=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def chart(found):
    return found.figure().to_dict(validate=False)


RATES = ["0.0001", "0.0003", "0.001", "0.003", "0.01"]


def test_the_table_is_in_the_order_of_the_sweep(found):
    """Of the settings between, too, which come after the runs."""
    labels = [line.label for line in found.chapter.results.lines]
    assert labels == [f"FO (AdamW) (lr={rate})" for rate in RATES] + [
        f"interpolation (lr={rate}, share={share})" for rate in RATES for share in (0.25, 0.5, 0.75)
    ]


def test_a_line_joins_the_settings_in_their_order(chart):
    rows = sorted(chart["datasets"]["rows"], key=lambda row: row["order"])
    lines = {}
    for row in rows:
        setting = re.search(r"\((lr=.*)\): learns", row["tip"])[1].replace("=", " ")
        lines.setdefault((row["method"], row["line"]), []).append(setting)
    assert lines == {
        ("FO (AdamW)", ""): [f"lr {rate}" for rate in RATES],
        **{
            ("interpolation", f"lr={rate}"): [f"lr {rate}, share {s}" for s in (0.25, 0.5, 0.75)]
            for rate in RATES
        },
    }
    details = [layer.get("encoding", {}).get("detail") for layer in chart["layer"]]
    assert {"field": "line", "type": "nominal"} in details


def test_the_figure_has_the_bands_of_its_curves(found, chart):
    wanted = {(place.method, place.learned) for place in bands_of(found.frontier)}
    drawn = {(row["method"], row["x"]) for row in chart["datasets"]["bands"]}
    assert drawn
    assert drawn <= wanted, "those that would fill the axis are left out"
    page = Path(found.files["page"]).read_text(encoding="utf-8")
    assert "Shaded: the 95% interval over seeds" in page


def test_the_abbreviations_are_spelled_out_before_they_are_used(found):
    page = Path(found.files["page"]).read_text(encoding="utf-8")
    shown = page[page.index("<main") :]
    for text in (shown, str(found)):
        for word in ("New: accuracy right after", "Fgt: points lost since", "FO: AdamW or SGD"):
            assert text.count(word) == 1
            assert text.index(word) < text.index("At equal learning in this search")
    assert "ZO:" not in str(found), "it is no method of this search"


def test_the_lines_are_a_block_of_code_on_the_page(found):
    page = Path(found.files["page"]).read_text(encoding="utf-8")
    (shown,) = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", page, re.DOTALL)
    assert unescape(shown).split("\n") == list(found.winner.code)
    assert "\n".join(f"    {line}".rstrip() for line in found.winner.code) in str(found)
