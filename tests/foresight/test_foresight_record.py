"""The record of turned digits can be read, and the page says what it says."""

import json
from pathlib import Path

from risegrad.foresight.foresight_report import foresight_page, foresight_summary
from risegrad.foresight.foresight_result import ForesightResult

ROOT = Path(__file__).parents[2]
FILE = ROOT / "experiments" / "records" / "foresight" / "turned-digits.json"


def test_the_record_and_the_document():
    content = json.loads(FILE.read_text())
    found = ForesightResult.from_dict(content)
    assert content["environment"]["git"]["dirty"] is False
    text = foresight_summary(found)
    assert "Over 63 sessions" in text
    document = (ROOT / "docs" / "foresight.md").read_text()
    for row in content["horizons"]:
        known = row["correlation"]
        shown = f"{known['value']:.2f} ({known['low']:.2f} to {known['high']:.2f})"
        assert shown in document
        assert shown in text
    page = foresight_page(found)
    assert page.count('class="plot"') == len(found.horizons)
    assert page.index("Over 63 sessions") < page.index("<figure")
