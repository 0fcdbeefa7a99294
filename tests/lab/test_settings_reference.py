"""The settings reference comes from the declarations."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest

from riselab.cli import main
from riselab.common.settings import Count, Limits, OneOf
from riselab.experiments.reference import FieldReference, reference, tables


@dataclass(frozen=True)
class Base:
    size: Count
    """How
    many."""


@dataclass(frozen=True)
class Table(Base):
    mode: Literal["on", "off"] = "on"
    name: Annotated[str, OneOf(("a", "b"))] = "a"
    """Which."""
    weight: Annotated[float | tuple[float, ...], Limits(above=0, at_most=1)] = 0.5
    steps: tuple[Count, ...] = (1, 2)
    extra: dict[str, int] = field(default_factory=dict)
    made: int = field(default=0, init=False)


def test_fields_in_words() -> None:
    assert reference(Table) == [
        FieldReference("size", "an integer >= 0", "", "How many."),
        FieldReference("mode", "one of 'on', 'off'", '"on"', ""),
        FieldReference("name", "one of 'a', 'b'", '"a"', "Which."),
        FieldReference("weight", "a number or a list (a number each) > 0 and <= 1", "0.5", ""),
        FieldReference("steps", "a list (an integer >= 0 each)", "[1, 2]", ""),
        FieldReference("extra", "a table (an integer by name)", "", ""),
    ]
    assert reference(Table, Table(3))[0].default == "3"


def test_every_field_of_an_experiment_file_has_a_meaning() -> None:
    silent = [
        f"{table.title}.{one.name}"
        for table in tables()
        for one in reference(table.cls)
        if not one.meaning
    ]
    assert not silent


def test_one_section_in_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", "settings", "loop"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("loop: Settings of the loop")
    assert "\n  batch: an integer >= 1 (default 48)\n" in text
    assert main(["list", "settings", "lop"]) == 2
    assert "SECTION must be one of stream, rule" in capsys.readouterr().err
    assert main(["list", "rules", "loop"]) == 2
    assert "SECTION is for 'rise list settings' only, got 'loop'" in capsys.readouterr().err
