"""Text from records cannot act: in HTML, scripts, Markdown, or on a terminal."""

from __future__ import annotations

import json
import re

import pytest

from report.made_up import HOSTILE
from riselab.common.intervals import Estimate
from riselab.pages.text import (
    for_markdown,
    for_script,
    interval_text,
    number,
    signed,
    spread_text,
    visible,
)


def test_visible_text_is_one_line_without_acting_characters() -> None:
    assert visible("a\n\tb\u2028c") == "a b c"
    assert visible("\x1b[31mred\x00\u202eevil\u200b\ud800") == "�[31mred��evil��"
    assert visible("Größe ± 5 µ") == "Größe ± 5 µ"


@pytest.mark.parametrize("text", [HOSTILE, "</SCRIPT>", "<!--<script>", "\u2028\u2029", "é\ud83d"])
def test_data_in_a_script_cannot_end_it_and_stays_the_same(text: str) -> None:
    written = for_script({text: [text]})
    assert not re.search("[<>&\u2028\u2029]", written)
    assert written.isascii()
    assert json.loads(written) == {text: [text]}


def test_markdown() -> None:
    assert for_markdown("a|b*c_d`e[x](javascript:1)<i>&amp;\nnew") == (
        r"a&#124;b\*c\_d\`e\[x\](javascript:1)&#60;i&#62;&#38;amp; new"
    )
    assert for_markdown("\\|") == r"\\&#124;"


def test_numbers() -> None:
    assert number(-1.234) == "−1.23"  # noqa: RUF001
    assert number(-0.001) == "0.00"
    assert signed(0.5) == "+0.50"
    assert spread_text(Estimate(88.391, 0.4, 3)) == "88.39 ± 0.40"
    assert spread_text(Estimate(88.39, None, 0)) == "88.39"
    found = Estimate(1, 1.5, 3)
    assert (found.low, found.high) == pytest.approx((-2.7262, 4.7262), abs=1e-4)
    assert interval_text(found, 1) == "[−2.7, +4.7]"  # noqa: RUF001
    assert interval_text(Estimate(1, None, 1)) == "(no interval)"
