"""For Markdown: formulas become MathML when the site is built; reading them needs no script."""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor

# What pymdownx.arithmatex makes of $...$ (a span) and of $$...$$ (a div).
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', flags=re.DOTALL
)
# Sides of a norm, which latex2mathml would stretch by themselves.
SIDES = {r"\l": r"\left", r"\r": r"\right"}
NORM = re.compile(r"(\\[lr])([Vv])ert\b")
STRETCHED = re.compile(r'stretchy="true"(?=[^>]*>&#x0(?:2016|007C);)')  # one height for all bars
# Names of functions are upright names, not operators with space around; a slash stands close.
LAST = '<mspace width="0.17em" /></mrow>'
FUNCTION, SLASH = re.compile(r"<mo>([a-z]{2,})</mo>"), "<mo>&#x0002F;</mo>"


def sides(found: re.Match[str]) -> str:
    """The bar that latex2mathml pairs with the other one."""
    return SIDES[found[1]] + (r"\|" if found[2] == "V" else "|") + " "


def mathml(formula: str, display: str) -> str:
    """A formula of LaTeX; `display` is "inline" or "block"."""
    found = STRETCHED.sub('stretchy="false"', convert(NORM.sub(sides, formula), display=display))
    close = found.replace(SLASH, '<mo lspace="0" rspace="0">/</mo>')
    return FUNCTION.sub(r'<mi>\1</mi><mspace width="0.17em" />', close).replace(LAST, "</mrow>")


def as_mathml(found: re.Match[str]) -> str:
    """The formula that was found; one that stands alone scrolls where it is wider than a phone."""
    alone = found[1] == "div"
    formula = mathml(html.unescape(found[2]).strip(), "block" if alone else "inline")
    return f'<div class="formula">{formula}</div>' if alone else formula


class MathMLPostprocessor(Postprocessor):
    """Runs last, on the finished HTML of a page."""

    def run(self, text: str) -> str:
        return FORMULA.sub(as_mathml, text)


class MathMLExtension(Extension):
    """Stands after pymdownx.arithmatex in mkdocs.yml."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.postprocessors.register(MathMLPostprocessor(md), "mathml", -10)


def makeExtension(**settings: Any) -> MathMLExtension:
    """What Markdown looks for in a module that is named as an extension."""
    return MathMLExtension(**settings)
