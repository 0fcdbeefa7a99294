"""The numbers in docs/sandbox.md are those of the record beside it, and every figure is shown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from riselab.sandbox.command import _number
from riselab.sandbox.run import SandboxSettings

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page() -> str:
    return " ".join((DOCS / "sandbox.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((DOCS / "records" / "sandbox.json").read_text())
    return parsed


def test_the_table_is_that_of_a_default_run(page: str, content: dict[str, Any]) -> None:
    assert SandboxSettings(**content["settings"]) == SandboxSettings()
    for row in content["comparison"]:
        spread = "" if row["spread"] is None else f" ± {row['spread']:.1g}"
        paper, exact = _number(row["paper"]), _number(row["exact"])
        assert f"| {row['what']} | {_number(row['ours'])}{spread} | {paper} | {exact} |" in page


def test_every_figure_is_shown_and_small(page: str, content: dict[str, Any]) -> None:
    shown = re.findall(r"\]\(figures/(figure-[^)]+\.png)\)", page)
    assert shown == [name for name in content["figures"] if name.endswith(".png")]
    for name in shown:
        assert (DOCS / "figures" / name).stat().st_size < 200_000
