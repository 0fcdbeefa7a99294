"""For mkdocstrings: doctests in docstrings become code blocks; Markdown would quote their lines."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


def fenced(text: str) -> str:
    """The text with every run of doctest lines, up to an empty one, as a block of code."""
    return DOCTEST.sub(lambda found: f"```python\n{found[0]}\n```", text)


class FencedDoctests(griffe.Extension):
    """Changes the docstrings that griffe has read, before they are rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
