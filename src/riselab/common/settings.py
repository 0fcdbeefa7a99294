"""Settings: plain mappings, as TOML and JSON have them, read strictly into frozen dataclasses.

``read`` checks every key and type and names the place of a mistake, ``as_plain`` is its inverse,
``essence`` is what of it makes results what they are, and ``digest`` names that in 64 characters.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Rule:
...     name: str
...     q: int = 1
>>> rule = read(Rule, {"name": "rise", "q": 4}, "rule")
>>> rule
Rule(name='rise', q=4)
>>> read(Rule, {"name": "rise", "Q": 4}, "rule")
Traceback (most recent call last):
    ...
ValueError: rule.Q: unknown, did you mean 'q'? There are name, q
>>> override({"rule": as_plain(rule)}, "rule.q=8")
{'rule': {'name': 'rise', 'q': 8}}
"""

from __future__ import annotations

import difflib
import functools
import sys
import tomllib
import types
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from risegrad.common.checks import (
    bounds_in_words,
    check_choice,
    check_number,
    listed,
    nearest_hint,
)
from risegrad.common.seal import digest

T = TypeVar("T")


class Unused(ValueError):
    """Settings that nothing would use: dotted places, and why."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{place} {reason}" for place, reason in reasons.items()))
        self.reasons = dict(reasons)


def read(cls: type[T], mapping: Mapping[str, Any], where: str = "", foreign: bool = False) -> T:
    """An instance of the dataclass ``cls``; a ``ValueError`` names the dotted place of a mistake.

    Fields may be str, int, float, bool, ``Literal``, tuples, ``dict[str, X]`` or a ``Mapping``,
    unions and other dataclasses. An int passes for a float, a bool never for an int. TOML has no
    null: where None is allowed, the word ``"none"`` stands for it.

    ``foreign``: a file that another version may have written, such as a record. Keys that ``cls``
    does not have are passed over, null is as good as absent, and each value is held to what its
    field declares, also inside of lists and tables.
    """
    if not isinstance(mapping, Mapping):
        raise wrong(where, "a table", mapping)
    kind: Any = cls  # mypy takes the hash of instances for that of the class
    hints = declared(kind) if foreign else _hints(kind)
    known = {field.name: field for field in fields(kind) if field.init}
    if foreign:
        mapping = {key: mapping[key] for key in known if mapping.get(key) is not None}
    for key in mapping:
        if key not in known:
            raise ValueError(f"{_join(where, key)}: {unknown(key, known)}")
    for name, field in known.items():
        if name not in mapping and required(field):
            raise ValueError(f"{_join(where, name)}: missing, expected {words(hints[name])}")
    values = {
        key: _value(hints[key], value, _join(where, key), foreign) for key, value in mapping.items()
    }
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:  # from the dataclass's own checks
        raise ValueError(f"{where}: {error}" if where else str(error)) from error


def as_plain(instance: Any) -> Any:
    """What JSON can hold: dataclasses as dicts, tuples as lists. The inverse of ``read``."""
    if is_dataclass(instance) and not isinstance(instance, type):
        return {f.name: as_plain(getattr(instance, f.name)) for f in fields(instance) if f.init}
    if isinstance(instance, Mapping):
        return {key: as_plain(value) for key, value in instance.items()}
    if isinstance(instance, tuple | list):
        return [as_plain(value) for value in instance]
    return instance


APART: Mapping[str, Any] = {"apart": True}
"""``field(metadata=APART)``: a setting that cannot change a result, such as how often to save."""

KINDS = frozenset({"name", "domain"})
"""Fields that say which of several kinds a table is: always part of what it says."""


def essence(instance: Any, complete: bool = False) -> Any:
    """Plain data that are equal for two settings exactly if their results should be equal.

    Fields that are ``APART`` are left out. So are values that are the default, unless ``complete``:
    a field that is added later, with a default that leaves everything as it was, changes nothing.

    >>> from dataclasses import dataclass, field
    >>> @dataclass(frozen=True)
    ... class Loop:
    ...     batch: int = 48
    ...     workers: int = field(default=0, metadata=APART)
    >>> essence(Loop(workers=8)), essence(Loop(batch=16)), essence(Loop(), complete=True)
    ({}, {'batch': 16}, {'batch': 48})
    """
    if is_dataclass(instance) and not isinstance(instance, type):
        kept = [f for f in fields(instance) if f.init and not f.metadata.get("apart")]
        pairs = ((f, getattr(instance, f.name)) for f in kept)
        return {
            f.name: essence(value, complete)
            for f, value in pairs
            if complete or f.name in KINDS or not _is_default(f, value)
        }
    if isinstance(instance, Mapping):
        return {key: essence(value, complete) for key, value in instance.items()}
    if isinstance(instance, tuple | list):
        return [essence(value, complete) for value in instance]
    return instance


def flat(plain: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Tables within tables as one, by dotted names.

    >>> flat({"rule": {"name": "rise", "q": 4}, "seed": 0})
    {'rule.name': 'rise', 'rule.q': 4, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for key, value in plain.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{place}{key}.")
        else:
            found[f"{place}{key}"] = value
    return found


def without(plain: Mapping[str, Any], places: Iterable[str], above: str = "") -> dict[str, Any]:
    """The tables without the values at some dotted places.

    >>> without({"stream": {"data": "x", "base": 2}}, ["stream.data"])
    {'stream': {'base': 2}}
    """
    gone = set(places)
    return {
        key: without(value, gone, f"{above}{key}.") if isinstance(value, Mapping) else value
        for key, value in plain.items()
        if f"{above}{key}" not in gone
    }


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``, table by table and key by key; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def override(mapping: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """The mapping with one value replaced: ``"host.q=8"``; the value is TOML or a bare word."""
    place, equals, text = assignment.partition("=")
    if not equals or not all(part.strip() for part in place.split(".")):
        raise ValueError(
            f"an override must look like section.key=value, got {short(assignment, LONGEST)}"
        )
    changed: dict[str, Any] = place_value(mapping, place, _parsed(text.strip(), assignment))
    return changed


def place_value(table: Any, place: str, value: Any, above: str = "") -> Any:
    """The table with ``value`` at a dotted place; missing tables on the way are created.

    >>> place_value({"additions": [{"name": "ewc"}]}, "additions.0.weight", 3)
    {'additions': [{'name': 'ewc', 'weight': 3}]}
    """
    part, dot, rest = (piece.strip() for piece in place.partition("."))
    here = f"{above}.{part}".lstrip(".")
    if isinstance(table, list):
        if not part.isdecimal() or int(part) >= len(table):
            raise ValueError(f"{here} must be a number below {len(table)}, the place in a list")
        number = int(part)
        new = place_value(table[number], rest, value, here) if dot else value
        return [*table[:number], new, *table[number + 1 :]]
    if not isinstance(table, Mapping):
        raise ValueError(f"{here}: {above} is a value, not a table")
    new = place_value(table.get(part, {}), rest, value, here) if dot else value
    return merge(table, {part: new})


def unknown(name: str, known: Iterable[str]) -> str:
    """The words for a name that does not exist: the nearest that does, and all of them."""
    names = list(known)
    near = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1)
    nearest = next((n for n in names if near and n.lower() == near[0]), None)
    hint = f", did you mean {nearest!r}?" if nearest else "."
    return f"unknown{hint} There are {listed(names)}" if names else "unknown, nothing is allowed"


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """The types of the fields, without what they declare beside: that is for the instance."""
    return get_type_hints(cls)


def required(field: Field[Any]) -> bool:
    """Whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def _is_default(field: Field[Any], value: Any) -> bool:
    if required(field):
        return False
    factory = field.default_factory
    default = field.default if factory is MISSING else factory()
    if is_dataclass(value) and type(value) is type(default):
        return digest(essence(value, complete=True)) == digest(essence(default, complete=True))
    return type(value) is type(default) and bool(value == default)


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


LONGEST = 100  # characters of an assignment in an error


def _parsed(text: str, assignment: str) -> Any:
    shown = short(assignment, LONGEST)
    try:
        found = tomllib.loads(f"value = {text}")
    except RecursionError:
        raise ValueError(f"{shown} is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        if text[:1] in ("", "[", "{", '"', "'"):
            raise ValueError(f"{shown} has no TOML value after '=': {error}") from None
        return text
    if list(found) != ["value"]:  # a line break in the text began a new key
        raise ValueError(f"one value at a time, got {shown}")
    return found["value"]


def _value(hint: Any, value: Any, where: str, foreign: bool) -> Any:
    """``value`` as the type ``hint`` says it."""
    if isinstance(hint, type) and hint in _WORDS:  # the most frequent, so the first
        return _scalar(hint, value, where)
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        found = _value(args[0], value, where, foreign)
        for declaration in args[1:]:
            declaration.check(where, found, args[0])
        return found
    if origin in (Union, types.UnionType):
        return _one_of(args, value, where, foreign)
    if origin is Literal:
        if not any(type(value) is type(word) and value == word for word in args):
            near = nearest_hint(value, args) if isinstance(value, str) else ""
            raise ValueError(f"{wrong(where, words(hint), value)}{near}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise wrong(where, words(hint), value)
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
        if len(kinds) != len(value):
            raise wrong(where, words(hint), value)
        pairs = enumerate(zip(kinds, value, strict=True))
        return tuple(_value(kind, item, f"{where}[{n}]", foreign) for n, (kind, item) in pairs)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise wrong(where, "a table", value)
        return {k: _value(args[1], item, _join(where, k), foreign) for k, item in value.items()}
    if is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
        return read(hint, value, where, foreign)  # type: ignore[arg-type]
    raise TypeError(f"{where}: settings cannot hold {hint}")


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and type(value) in (int, float):
        if not -sys.float_info.max <= value <= sys.float_info.max:  # nor is NaN
            raise wrong(where, "a finite number", value)
        return float(value)
    if type(value) is not hint:
        raise wrong(where, _WORDS[hint], value)
    return value


def _one_of(args: tuple[Any, ...], value: Any, where: str, foreign: bool) -> Any:
    """The first kind of a union that fits; with one kind beside None, that kind's own message."""
    kinds = [kind for kind in args if kind is not type(None)]
    if len(kinds) < len(args) and (value is None or (value == "none" and not foreign)):
        return None
    for kind in kinds[:-1]:
        try:
            return _value(kind, value, where, foreign)
        except ValueError:
            continue
    try:
        return _value(kinds[-1], value, where, foreign)
    except ValueError:
        if len(kinds) == 1:
            raise
        raise wrong(where, " or ".join(map(words, args)), value) from None


_WORDS = {str: "a text", int: "an integer", float: "a number", bool: "true or false"}


def words(hint: Any) -> str:
    """A type in words, with what is declared about it.

    >>> words(tuple[Count, ...]), words(float | None)
    ('a list (an integer >= 0 each)', 'a number or "none"')
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        a_name = args[0] is str and any(isinstance(one, OneOf) for one in args[1:])
        kinds = [] if a_name else [words(args[0])]  # that it is a text goes unsaid
        return " ".join(filter(None, [*kinds, *(one.words() for one in args[1:])]))
    if origin in (Union, types.UnionType):
        return " or ".join(map(words, args))
    if origin is tuple and args[-1] is Ellipsis:
        return f"a list ({words(args[0])} each)"
    if origin is tuple:
        return f"a list of {len(args)} ({', '.join(map(words, args))})"
    if origin is Literal:
        return choices_in_words(args)
    if origin in (dict, Mapping) and args[1] is not Any:
        return f"a table ({words(args[1])} by name)"
    return '"none"' if hint is type(None) else _WORDS.get(hint, "a table")


def short(value: object, most: int = 60) -> str:
    """A value as text, cut where it is long."""
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def wrong(where: str, expected: str, value: Any) -> ValueError:
    """The error for a value of another kind than expected at a dotted place."""
    got = "a table" if isinstance(value, Mapping) else short(value)
    return ValueError(f"{where or 'the settings'}: expected {expected}, got {got}")


@dataclass(frozen=True)
class Limits:
    """Limits of a number, or of every number where a field may hold one or several."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def check(self, name: str, value: Any, kind: Any) -> None:
        """Raise an error if a number is outside the limits."""
        several = isinstance(value, tuple) and kind not in (int, float)
        for number in value if several else (value,):
            check_number(name, number, **vars(self), whole=kind is int)

    def words(self) -> str:
        """The limits in words."""
        return bounds_in_words(**vars(self))


@dataclass(frozen=True)
class OneOf:
    """Names that are listed elsewhere, with more about each; a ``Literal`` lists its own."""

    names: Collection[str]

    def check(self, name: str, value: object, kind: Any) -> None:
        """Raise an error if ``value`` is not one of the names."""
        check_choice(name, value, self.names)

    def words(self) -> str:
        """The names in words."""
        return choices_in_words(self.names)


Count = Annotated[int, Limits(at_least=0)]
PositiveInt = Annotated[int, Limits(at_least=1)]
NonNegative = Annotated[float, Limits(at_least=0)]
Positive = Annotated[float, Limits(above=0)]
Share = Annotated[float, Limits(at_least=0, below=1)]
Seed32 = Annotated[int, Limits(at_least=0, below=2**32)]
"""What NumPy takes as a seed."""


class Checked:
    """A dataclass that checks every instance against the limits its fields declare."""

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(instance: object, where: str = "") -> None:
    """Every field within what it declares; an error names it below the dotted place ``where``."""
    cls: Any = type(instance)  # mypy takes the hash of instances for that of the class
    for name, hint in declared(cls).items():
        _check(f"{where}.{name}" if where else name, getattr(instance, name), hint)


@functools.cache
def declared(cls: type) -> dict[str, Any]:
    """The fields that a table of settings may give, and their annotations with all they declare."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def _check(name: str, value: object, hint: Any) -> None:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for declaration in args[1:]:
            declaration.check(name, value, args[0])
    elif origin is Literal:
        check_choice(name, value, args)
    elif origin is tuple and get_origin(args[0]) is Annotated and isinstance(value, tuple):
        for item in value:
            _check(f"each of {name}", item, args[0])


def choices_in_words(names: Collection[object]) -> str:
    """The names that may be chosen."""
    return f"one of {', '.join(map(repr, names))}"
