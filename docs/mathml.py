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


def as_mathml(found: re.Match[str]) -> str:
    """The formula that was found; one that stands alone scrolls where it is wider than a phone."""
    alone = found[1] == "div"
    formula = convert(html.unescape(found[2]).strip(), display="block" if alone else "inline")
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
