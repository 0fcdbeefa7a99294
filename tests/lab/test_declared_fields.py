"""Limits and choices declared on the fields of settings."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pytest

from riselab.common.settings import (
    Checked,
    Count,
    Limits,
    OneOf,
    check_fields,
    essence,
    read,
)

COLORS = {"red": "warm", "blue": "cold"}


@dataclass(frozen=True)
class Parent(Checked):
    size: Count = 1


@dataclass(frozen=True)
class Child(Parent):
    mode: Literal["on", "off"] = "on"
    color: Annotated[str, OneOf(COLORS)] = "red"
    share: Annotated[float, Limits(above=0, at_most=1)] = 0.5
    counts: tuple[Count, ...] = ()
    weight: Annotated[float | tuple[float, ...], Limits(at_least=0)] = 0.0
    free: Any = None


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"size": -1}, ValueError, r"^size must be an integer >= 0, got -1$"),
    ({"size": 1.0}, TypeError, r"^size must be an integer >= 0, got 1.0 \(float\)$"),
    ({"size": True}, TypeError, r"^size must be an integer >= 0, got True \(bool\)$"),
    ({"size": (1, 2)}, TypeError, r"^size must be an integer >= 0, got \(1, 2\) \(tuple\)$"),
    ({"mode": "of"}, ValueError, r"^mode must be one of on, off; got 'of' \(did you mean 'off'"),
    ({"color": "green"}, ValueError, r"^color must be one of red, blue; got 'green'"),
    ({"share": 0}, ValueError, r"^share must be a finite number > 0 and <= 1, got 0$"),
    ({"share": float("nan")}, ValueError, r"^share must be a finite number .*, got nan$"),
    ({"counts": (1, -2)}, ValueError, r"^each of counts must be an integer >= 0, got -2$"),
    ({"weight": -1.0}, ValueError, r"^weight must be a finite number >= 0, got -1.0$"),
    ({"weight": (1.0, -2.0)}, ValueError, r"^weight must be a finite number >= 0, got -2.0$"),
]


@pytest.mark.parametrize(("given", "kind", "message"), BAD)
def test_every_way_to_make_an_instance_is_checked(given, kind, message):
    with pytest.raises(kind, match=message):
        Child(**given)
    with pytest.raises(kind, match=message):
        replace(Child(), **given)


def test_the_reader_adds_the_place():
    with pytest.raises(ValueError, match=r"^rule: size must be an integer >= 0, got -1$"):
        read(Child, {"size": -1}, "rule")
    nearest = r"^rule.mode: expected one of 'on', 'off', got 'of' \(did you mean 'off'\?\)$"
    with pytest.raises(ValueError, match=nearest):
        read(Child, {"mode": "of"}, "rule")


def test_a_table_without_checks_of_its_own_can_be_checked_at_its_place():
    @dataclass(frozen=True)
    class Loose:
        size: Count = 0

    with pytest.raises(ValueError, match=r"^data.size must be an integer >= 0, got -3$"):
        check_fields(Loose(-3), "data")


def test_declarations_are_no_part_of_what_settings_say():
    assert essence(Child(size=3, weight=(1.0, 2.0))) == {"size": 3, "weight": [1.0, 2.0]}
    assert read(Child, {"weight": [1, 2], "share": 1}) == Child(weight=(1.0, 2.0), share=1.0)
