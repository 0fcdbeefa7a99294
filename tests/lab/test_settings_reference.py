"""The settings reference comes from the declarations."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from riselab.common.settings import Count, Limits, OneOf

pytest.importorskip("markdown", reason="markdown is not installed")
sys.path.append(str(Path(__file__).parents[2] / "docs"))
from declarations import FieldReference, reference, tables


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
