"""The tables in the documentation are those of the records."""

from pathlib import Path

import pytest

from benchmarks.tables import PLACES, filled

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("place", PLACES)
def test_tables_come_from_records(place):
    text = (ROOT / place).read_text(encoding="utf-8")
    assert "<!-- end -->" in text or "<!-- / -->" in text
    assert filled(text) == text, "run `python -m benchmarks.tables`"
