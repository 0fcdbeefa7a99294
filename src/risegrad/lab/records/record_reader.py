"""JSON objects with their place in a file, so that an error names file, field and reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

LARGEST_NUMBER = 1e100
"""Beyond this, sums of squares are no numbers any more; nothing that was measured comes near."""

MOST_BITS = 64


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

    def text(self, key: str, default: str | None = None) -> str:
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

    def integer(self, key: str, default: int | None = None) -> int:
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


def deeper_than(levels: int, content: Any) -> bool:
    """Whether lists and objects are nested deeper than this; found without recursion."""
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
