"""JSON objects read into dataclasses; an error names file, field and reason.

The dataclass says it all: types, which fields may be absent (those with a default), and by
``Annotated`` further conditions and the place in the file. Keys that it does not have are ignored.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

LARGEST_NUMBER = 1e100
"""Beyond this, sums of squares are no numbers any more; nothing that was measured comes near."""

MOST_BITS = 64
SLACK = 1e-3  # how far a percentage may lie outside [0, 100] by rounding

T = TypeVar("T")


class RecordError(ValueError):
    """A file that cannot be used as a record: which, and why."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = Path(path), reason


class NotARecord(RecordError):
    """Readable JSON that is something else; no reason to worry where a folder was searched."""


class JsonPart:
    """One JSON object and its place in the file, for errors that name the field."""

    def __init__(self, path: Path, place: str, content: Any) -> None:
        if not isinstance(content, dict):
            kind = NotARecord if not place else RecordError
            raise kind(path, f"{place or 'the record'} must be an object, got {short(content)}")
        self.path, self.place, self.content = path, place, content

    def where(self, key: str) -> str:
        """The full name of a field, for an error text."""
        return f"{self.place}.{key}".lstrip(".")

    def fail(self, key: str, expected: str) -> RecordError:
        """The error for a field that is missing or not what was expected."""
        if key not in self.content:
            return RecordError(self.path, f"{self.where(key)} is missing, expected {expected}")
        got = short(self.content[key])
        return RecordError(self.path, f"{self.where(key)} must be {expected}, got {got}")

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.content.get(key) is not None

    def part(self, key: str, optional: bool = False) -> JsonPart:
        """The object in a field."""
        value = {} if optional and not self.has(key) else self.content.get(key)
        if not isinstance(value, dict):
            raise self.fail(key, "an object")
        return JsonPart(self.path, self.where(key), value)

    def parts(self, key: str) -> list[JsonPart]:
        """The objects in a field that is a list."""
        place = self.where(key)
        return [JsonPart(self.path, f"{place}[{i}]", item) for i, item in enumerate(self.list(key))]

    def list(self, key: str) -> Sequence[Any]:
        """The list in a field; empty if there is none."""
        value = self.content[key] if self.has(key) else []
        if not isinstance(value, list):
            raise self.fail(key, "a list")
        return value

    def numbered(self, key: str) -> JsonPart:
        """A list as an object whose keys are the positions."""
        content = {str(n): item for n, item in enumerate(self.list(key))}
        return JsonPart(self.path, self.where(key), content)

    def text(self, key: str, default: Any = None) -> str:
        """The text in a field."""
        value = self.content[key] if self.has(key) else default
        if not isinstance(value, str):
            raise self.fail(key, "text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """The texts in a field that is a list."""
        values = self.list(key)
        if not all(isinstance(value, str) for value in values):
            raise self.fail(key, "a list of texts")
        return tuple(values)

    def integer(self, key: str, default: Any = None) -> int:
        """The integer in a field."""
        value = self.content[key] if self.has(key) else default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, "an integer")
        if value.bit_length() > MOST_BITS:
            raise self.fail(key, f"an integer of at most {MOST_BITS} bits")
        return value

    def flag(self, key: str) -> bool:
        """The truth value in a field; False if there is none."""
        value = self.content[key] if self.has(key) else False
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def number(self, key: str) -> float | None:
        """None where it is null or absent."""
        return None if not self.has(key) else self._number(self.content[key], key)

    def numbers(self, key: str) -> tuple[float | None, ...]:
        """The numbers in a field that is a list; null stays None."""
        return tuple(None if v is None else self._number(v, key) for v in self.list(key))

    def _number(self, value: Any, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(key, "numbers")
        if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
            raise self.fail(key, f"numbers between -{LARGEST_NUMBER:g} and {LARGEST_NUMBER:g}")
        return float(value)


@dataclass(frozen=True)
class At:
    """A field that lies in an object of its own: the object, and the key there."""

    outer: str
    key: str


@dataclass(frozen=True)
class IfAbsent:
    """What a field is in files that lack it, where Python code must give it."""

    value: Any


class NotBlank:
    """A text that says something."""

    words = "text that is not blank"

    def fits(self, value: str) -> bool:
        """Whether the text has more than spaces."""
        return bool(value.strip())


class Percentages:
    """Numbers from 0 to 100, or None."""

    words = "percentages in [0, 100]"
    each = "percentage or null"

    def fits(self, values: Sequence[float | None]) -> bool:
        """Whether all numbers are percentages, up to rounding; None is allowed."""
        return all(v is None or -SLACK <= v <= 100 + SLACK for v in values)


class NotEmpty:
    """A list of one thing or more."""

    def __init__(self, thing: str) -> None:
        self.words = f"a list with at least one {thing}"

    def fits(self, values: Sequence[Any]) -> bool:
        """Whether there is at least one."""
        return bool(values)


Reader = Callable[[JsonPart, str, Any], Any]
"""A value from an object by its key, and the default, ``MISSING`` where it must be there."""


def decode(cls: type[T], part: JsonPart) -> T:
    """The dataclass ``cls`` from an object; a field of type ``Path`` gets the place of the file."""
    kind: Any = cls  # mypy takes the hash of instances for that of the class
    return cls(**{name: reader(part, name, default) for name, reader, default in _plan(kind)})


@functools.cache
def _plan(cls: type) -> list[tuple[str, Reader, Any]]:
    """How each field is read, worked out once for a class."""
    hints = get_type_hints(cls, include_extras=True)
    return [
        (f.name, _reader(hints[f.name]), f.default if f.default_factory is MISSING else None)
        for f in fields(cls)
    ]


_SIMPLE: dict[Any, Reader] = {
    str: lambda part, key, default: part.text(key, None if default is MISSING else default),
    int: lambda part, key, default: part.integer(key, None if default is MISSING else default),
    bool: lambda part, key, default: part.flag(key),
    float | None: lambda part, key, default: part.number(key),
    tuple[float | None, ...]: lambda part, key, default: part.numbers(key),
    tuple[str, ...]: lambda part, key, default: part.texts(key),
    Mapping[str, Any]: lambda part, key, default: _part(part, key, default).content,
    Path: lambda part, key, default: part.path,
}


def _reader(hint: Any) -> Reader:
    origin, args = get_origin(hint), get_args(hint)
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if origin is Annotated:
        return _annotated(_reader(args[0]), args[1:])
    if origin is Mapping:
        return _by_name(_reader(args[1]))
    if origin is tuple and is_dataclass(args[0]):
        return lambda part, key, default: tuple(decode(args[0], p) for p in part.parts(key))
    if origin is tuple:
        return _rows(_reader(args[0]))
    if origin is types.UnionType and is_dataclass(args[0]):
        inner = _reader(args[0])
        return lambda part, key, default: inner(part, key, MISSING) if part.has(key) else None
    if is_dataclass(hint):
        return lambda part, key, default: decode(hint, _part(part, key, default))  # type: ignore[arg-type]
    raise TypeError(f"records cannot hold {hint}")


def _part(part: JsonPart, key: str, default: Any) -> JsonPart:
    return part.part(key, optional=default is not MISSING)


def _by_name(inner: Reader) -> Reader:
    def read(part: JsonPart, key: str, default: Any) -> dict[str, Any]:
        named = _part(part, key, default)
        return {name: inner(named, name, MISSING) for name in named.content}

    return read


def _rows(inner: Reader) -> Reader:
    def read(part: JsonPart, key: str, default: Any) -> tuple[Any, ...]:
        numbered = part.numbered(key)
        return tuple(inner(numbered, name, MISSING) for name in numbered.content)

    return read


def _annotated(inner: Reader, notes: Iterable[Any]) -> Reader:
    for note in notes:
        inner = _with_note(inner, note)
    return inner


def _with_note(inner: Reader, note: Any) -> Reader:
    if isinstance(note, At):
        outer, place = note.outer, note.key
        return lambda part, key, default: inner(part.part(outer, optional=True), place, default)
    if isinstance(note, IfAbsent):
        value = note.value
        return lambda part, key, default: inner(part, key, value)

    def read(part: JsonPart, key: str, default: Any) -> Any:
        found = inner(part, key, default)
        if not note.fits(found):
            raise part.fail(key, note.words)
        return found

    return read


def deeper_than(levels: int, content: Any) -> bool:
    """Whether lists and objects are nested deeper than this; without recursion of its own."""
    inner = [content]
    for _ in range(levels):
        inner = [item for one in inner if isinstance(one, dict | list) for item in _items(one)]
    return any(isinstance(one, dict | list) for one in inner)


def _items(one: Any) -> Iterable[Any]:
    return one.values() if isinstance(one, dict) else one


def short(value: Any) -> str:
    """A value as text of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
