"""The record of turned digits can be read, and the page says what it says."""

import json
from itertools import combinations
from pathlib import Path
from statistics import fmean

from risegrad.foresight.foresight_report import foresight_page, foresight_summary
from risegrad.foresight.foresight_result import ForesightResult

INFORMED = {"informed", "informed (SGD)", "informed RISE"}
ROOT = Path(__file__).parents[2]
FILE = ROOT / "experiments" / "records" / "foresight" / "turned-digits.json"


def test_the_record_and_the_document():
    content = json.loads(FILE.read_text())
    found = ForesightResult.from_dict(content)
    assert content["environment"]["git"]["dirty"] is False
    text = foresight_summary(found)
    assert "Over 270 sessions" in text
    document = (ROOT / "docs" / "foresight.md").read_text()
    for row in content["horizons"]:
        known = row["correlation"]
        shown = f"{known['value']:.2f} ({known['low']:.2f} to {known['high']:.2f})"
        assert shown in document
        assert shown in text
    page = foresight_page(found)
    assert page.count('class="plot"') == len(found.horizons)
    assert page.index("Over 270 sessions") < page.index("<figure")


def test_what_the_document_says_of_pairs_and_points():
    """The sentences below the table, from the record."""
    found = ForesightResult.from_dict(json.loads(FILE.read_text()))
    document = " ".join((ROOT / "docs" / "foresight.md").read_text().split())
    right: dict[bool, list[bool]] = {True: [], False: []}
    for one, two in combinations(found.sessions, 2):
        if (one.seed, one.task) == (two.seed, two.task) and one.method != two.method:
            a, b = one.moments[-1], two.moments[-1]
            mixed = (one.method in INFORMED) != (two.method in INFORMED)
            if mixed or one.method not in INFORMED:
                right[mixed].append((a.predicted < b.predicted) == (a.true < b.true))
    among, across = (f"{fmean(right[mixed]):.0%}".replace("%", " %") for mixed in (False, True))
    assert f"orders {among} of the pairs without an informed method right" in document
    assert f"{across} of the pairs of an informed method and another" in document
    points = {
        method: fmean(s.forgetting for s in found.sessions if s.method == method)
        for method in found.methods
    }
    low, high = ([v for m, v in points.items() if (m in INFORMED) == i] for i in (True, False))
    few, many = (f"{min(side):.0f} to {max(side):.0f}" for side in (low, high))
    assert f"they forget {few} points, the others {many}" in document
