"""Strict reading of plain mappings into dataclasses: what passes, what is said when it does not."""

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from risegrad.common.seal import digest
from riselab.common.settings import (
    APART,
    as_plain,
    essence,
    flat,
    merge,
    override,
    place_value,
    read,
    without,
)


@dataclass(frozen=True)
class Rule:
    name: Literal["rise", "fo"] = "fo"
    q: int = 1
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.q < 1:
            raise ValueError(f"q must be at least 1, got {self.q}")


@dataclass(frozen=True)
class Run:
    stream: str
    rule: Rule = field(default_factory=Rule)
    milestones: tuple[int, ...] = ()
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = None
    fast: bool = False
    classes: int | tuple[int, ...] = 10
    rules: tuple[Rule, ...] = ()
    extra: dict[str, float] = field(default_factory=dict)


FULL: dict[str, Any] = {
    "stream": "digits",
    "rule": {"name": "rise", "q": 4, "scale": 0.5},
    "milestones": [3, 5],
    "betas": [0.5, 0.75],
    "clip": 2.5,
    "fast": True,
    "classes": [2, 2],
    "rules": [{"name": "fo", "q": 1, "scale": 1.0}],
    "extra": {"a": 1.0},
}


def test_everything_comes_back_as_it_was() -> None:
    run = read(Run, FULL)
    assert run.rule == Rule("rise", 4, 0.5)
    assert run.milestones == (3, 5)
    assert as_plain(run) == FULL
    assert read(Run, json.loads(json.dumps(as_plain(run)))) == run


def test_defaults_are_those_of_the_dataclass() -> None:
    run = read(Run, {"stream": "digits"})
    assert run == Run("digits")
    assert read(Run, as_plain(run)) == run


def test_an_integer_passes_for_a_number_and_becomes_one() -> None:
    one, two = read(Rule, {"scale": 2}), read(Rule, {"scale": 2.0})
    assert digest(as_plain(one)) == digest(as_plain(two))


def test_none_can_be_written_where_it_is_allowed() -> None:
    assert read(Run, {"stream": "none", "clip": "none"}) == Run("none")
    assert read(Run, {"stream": "x", "clip": None}).clip is None


def test_an_instance_passes_for_its_table() -> None:
    assert read(Run, {"stream": "x", "rule": Rule(q=3)}).rule.q == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": {"Q": 2}}, "run.rule.Q: unknown, did you mean 'q'? There are name, q, scale"),
        ({"rul": {}}, "run.rul: unknown, did you mean 'rule'? There are stream, rule, milestones"),
        ({"zzz": 1}, "run.zzz: unknown. There are stream, rule"),
        ({"rule": {"q": True}}, "run.rule.q: expected an integer, got True"),
        ({"rule": {"q": 2.0}}, "run.rule.q: expected an integer, got 2.0"),
        ({"rule": {"q": "2"}}, "run.rule.q: expected an integer, got '2'"),
        ({"rule": {"q": 0}}, "run.rule: q must be at least 1, got 0"),
        ({"rule": {"scale": True}}, "run.rule.scale: expected a number, got True"),
        ({"rule": {"scale": float("nan")}}, "run.rule.scale: expected a finite number, got nan"),
        ({"rule": {"name": "sgd"}}, "run.rule.name: expected one of 'rise', 'fo', got 'sgd'"),
        ({"rule": 3}, "run.rule: expected a table, got 3"),
        ({"stream": 3}, "run.stream: expected a text, got 3"),
        ({"fast": 1}, "run.fast: expected true or false, got 1"),
        ({"clip": "one"}, "run.clip: expected a number, got 'one'"),
        ({"milestones": 3}, "run.milestones: expected a list (an integer each), got 3"),
        ({"milestones": [1, "b"]}, "run.milestones[1]: expected an integer, got 'b'"),
        ({"betas": [0.5]}, "run.betas: expected a list of 2 (a number, a number), got [0.5]"),
        ({"classes": "x"}, "run.classes: expected an integer or a list (an integer each), got 'x'"),
        ({"rules": [{"p": 1}]}, "run.rules[0].p: unknown"),
        ({"extra": 1}, "run.extra: expected a table, got 1"),
        ({"stream": {"a": 1}}, "run.stream: expected a text, got a table"),
        ({"fast": "y" * 99}, f"run.fast: expected true or false, got '{'y' * 56}..."),
    ],
)
def test_a_mistake_is_named_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read(Run, FULL | change, "run")


def test_a_missing_value_and_a_mistake_at_the_top() -> None:
    with pytest.raises(ValueError, match=r"^stream: missing, expected a text$"):
        read(Run, {})
    with pytest.raises(ValueError, match=r"^q must be at least 1, got 0$"):
        read(Rule, {"q": 0})
    with pytest.raises(ValueError, match=r"^the settings: expected a table, got 3$"):
        read(Rule, 3)  # type: ignore[arg-type]


def test_a_field_that_settings_cannot_hold_is_the_programmers_mistake() -> None:
    @dataclass(frozen=True)
    class Odd:
        value: complex

    with pytest.raises(TypeError, match="value: settings cannot hold"):
        read(Odd, {"value": 1})


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("rule.q=8", 8),
        ("rule.q = 8", 8),
        ("rule.q=1e-3", 1e-3),
        ("rule.q=true", True),
        ("rule.q=[1, 2]", [1, 2]),
        ("rule.q='a b'", "a b"),
        ("rule.q=rise", "rise"),
        ("rule.q=data/x=1.npz", "data/x=1.npz"),
        ("rule.q={a=1}", {"a": 1}),
    ],
)
def test_an_override_replaces_one_value(assignment: str, value: object) -> None:
    before = {"rule": {"q": 1, "scale": 2}, "other": 3}
    after = override(before, assignment)
    assert after == {"rule": {"q": value, "scale": 2}, "other": 3}
    assert before == {"rule": {"q": 1, "scale": 2}, "other": 3}


def test_an_override_makes_the_tables_it_needs() -> None:
    assert override({}, "a.b.c=1") == {"a": {"b": {"c": 1}}}
    assert override({"seeds": [0]}, "seeds=[1]") == {"seeds": [1]}


def test_one_of_a_list_of_tables_is_named_by_its_number() -> None:
    tables = {"a": [{"x": 1}, {"x": 2, "y": 3}]}
    assert override(tables, "a.1.x=5") == {"a": [{"x": 1}, {"x": 5, "y": 3}]}
    assert tables == {"a": [{"x": 1}, {"x": 2, "y": 3}]}
    for place in ("a.2.x", "a.z.x"):
        with pytest.raises(ValueError, match=rf"{place[:3]} must be a number below 2"):
            override(tables, f"{place}=5")


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("rule.q", "an override must look like section.key=value, got 'rule.q'"),
        ("=3", "an override must look like"),
        ("rule..q=3", "an override must look like"),
        ("rule.q=", "has no TOML value after '='"),
        ("rule.q=[1, 2", "has no TOML value after '='"),
        ("rule.q=1\nother=2", "one value at a time"),
        ("name.q=1", "name.q: name is a value, not a table"),
    ],
)
def test_a_malformed_override_is_refused(assignment: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        override({"name": "x", "rule": {}}, assignment)


def test_merge_goes_key_by_key_and_changes_neither() -> None:
    base, over = {"a": {"x": 1, "y": {"z": 2}}, "b": 1}, {"a": {"y": {"w": 3}}, "b": {"c": 2}}
    assert merge(base, over) == {"a": {"x": 1, "y": {"z": 2, "w": 3}}, "b": {"c": 2}}
    assert base == {"a": {"x": 1, "y": {"z": 2}}, "b": 1}


def test_the_digest_is_of_the_content_not_the_order() -> None:
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})
    assert digest({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest({"a": float("nan")})


NAMES = st.text(alphabet="abcxyz", min_size=1, max_size=5)
TREES = st.recursive(
    st.integers() | NAMES, lambda below: st.dictionaries(NAMES, below), max_leaves=8
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(NAMES, TREES, max_size=4))
def test_merging_is_neutral_at_nothing_and_idempotent(tree: dict[str, Any]) -> None:
    assert merge({}, tree) == tree == merge(tree, {}) == merge(tree, tree)


@settings(max_examples=30, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=4), st.integers())
def test_a_value_placed_is_found_there(parts: list[str], value: int) -> None:
    found: Any = place_value({}, ".".join(parts), value)
    for part in parts:
        found = found[part]
    assert found == value


@dataclass(frozen=True)
class Part:
    name: str = ""
    size: int = 3


@dataclass(frozen=True)
class OtherPart:
    name: str = ""
    size: int = 3


@dataclass(frozen=True)
class Timed:
    seconds: float = field(default=60.0, metadata=APART)


@dataclass(frozen=True)
class Whole:
    must: int
    part: Part = field(default_factory=Part)
    timed: Timed = field(default_factory=Timed)
    unusual: Part = Part("b", 5)
    maybe: Part | None = None
    kind: Any = None
    many: tuple[Any, ...] = ()
    seconds: float = field(default=60.0, metadata=APART)


def test_the_essence_is_what_is_not_the_default() -> None:
    assert essence(Whole(3)) == {"must": 3}
    assert essence(Whole(3, unusual=Part("b")))["unusual"] == {"name": "b"}
    assert essence(Whole(3, seconds=1.0, timed=Timed(1.0))) == essence(Whole(3))
    assert essence(Whole(3, part=Part(size=4)))["part"] == {"name": "", "size": 4}
    assert essence(Whole(3, many=(Part("x"),)))["many"] == [{"name": "x"}]
    assert essence(Whole(3), complete=True)["part"] == {"name": "", "size": 3}
    assert "seconds" not in essence(Whole(3), complete=True)


def test_different_settings_have_different_essences() -> None:
    """Also where one of them is a default of its class and the other that of its field."""
    different = [
        Whole(3),
        Whole(4),
        Whole(3, unusual=Part()),
        Whole(3, unusual=Part("b")),
        Whole(3, maybe=Part()),
        Whole(3, kind=OtherPart("b")),
        Whole(3, kind=OtherPart("c")),
        Whole(3, many=(Part(),)),
        Whole(3, many=(Part(), Part())),
    ]
    assert len({digest(essence(one)) for one in different}) == len(different)


def test_places_are_flat_and_can_be_taken_out() -> None:
    plain = {"a": {"b": {"c": 1, "d": {}}}, "e": [1]}
    assert flat(plain) == {"a.b.c": 1, "a.b.d": {}, "e": [1]}
    assert without(plain, ["a.b.c", "e", "x"]) == {"a": {"b": {"d": {}}}}
    assert plain["e"] == [1]
