"""No page over a thousand words is without a picture, and every picture is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
WORDS = 1000
# A list of fields, made by a command from the settings themselves: it is looked up, not read.
LOOKED_UP = {"settings.md"}
CODE = re.compile(r"^( *)```.*?^\1```|<!--.*?-->", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"!\[[^]]+\]\(([^)]+)\)")
PAGES = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if path.name not in LOOKED_UP and path.parent.name != "reference"
]


def words(text: str) -> int:
    return len(CODE.sub("", text).split())


def test_words_of_code_and_of_marks_do_not_count() -> None:
    assert words("one two <!-- = equal a b -->\n\n    ```python\n    a = 1\n    ```\n\nthree") == 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_long_page_has_a_picture(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    pictures = PICTURE.findall(text)
    for address in pictures:
        assert (page.parent / address).is_file(), address
    if words(text) > WORDS:
        assert pictures, f"{words(text)} words without a picture"


def test_every_figure_is_on_a_page() -> None:
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]
    used = {Path(a).name for page in pages for a in PICTURE.findall(page.read_text("utf-8"))}
    drawn = {path.name for path in (DOCS / "figures").iterdir()}
    assert drawn | {path.name for path in (DOCS / "notebooks").glob("*.png")} == used
