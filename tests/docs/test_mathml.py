"""Formulas of the documentation as MathML."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
markdown = pytest.importorskip("markdown", reason="markdown is not installed")
pytest.importorskip("latex2mathml", reason="latex2mathml is not installed")


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(DOCS))
    extensions = ["pymdownx.arithmatex", "mathml"]
    settings = {"pymdownx.arithmatex": {"generic": True}}
    yield lambda text: markdown.markdown(text, extensions=extensions, extension_configs=settings)
    sys.modules.pop("mathml", None)


def test_inside_a_line_and_alone(rendered) -> None:
    inside = rendered("Of $a < b$ we know.")
    assert inside.startswith("<p>Of <math ")
    assert 'display="inline"' in inside
    assert inside.endswith("</math> we know.</p>")
    alone = rendered("$$\nx = 1\n$$")
    assert re.fullmatch(r'<div class="formula"><math .*display="block">.*</math></div>', alone)


def test_money_and_code_are_no_formulas(rendered) -> None:
    assert "<math" not in rendered("It costs $5 or $6; `$RISEGRAD_CACHE/$x` is code.")


@pytest.mark.parametrize(("bar", "sign"), [("Vert", "&#x02016;"), ("vert", "&#x0007C;")])
def test_bars_are_a_pair_of_one_height(rendered, bar: str, sign: str) -> None:
    found = rendered(rf"$\l{bar} g \r{bar}^2$")
    fence = r'<mo stretchy="false" fence="true" form="(\w+)">' + re.escape(sign)
    assert re.findall(fence, found) == ["prefix", "postfix"]


def test_names_of_functions_are_upright_with_a_thin_space(rendered) -> None:
    assert '<mi>tr</mi><mspace width="0.17em" /><mi>H</mi>' in rendered(r"$\operatorname{tr} H$")
    assert "<mi>max</mi></mrow>" in rendered(r"$\lambda_{\max}$")
