"""Examples as the sources give them, and what is wrong with some."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from risegrad.continual.language.streams.text_stream_settings import LanguageStreamSettings

SHOWN = 5
FIELD = re.compile(
    r"^(Title|Text|sentence [12]|(first|second) sentence|question|passage|paragraph"
    r"|candidate answer|word):",
    re.MULTILINE,
)
"""How the benchmark names the parts of a text; a text of names alone is empty."""


@dataclass(frozen=True)
class Example:
    """One text and its label, as the source has them."""

    sentence: str
    label: str

    @property
    def empty(self) -> bool:
        """Whether nothing is left of the sentence without the names of its fields."""
        return not FIELD.sub("", self.sentence).strip()


@dataclass(frozen=True)
class TextPart:
    """The examples of one file or one split of a dataset; ``where`` names it for people."""

    where: str
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class TextSource:
    """One task as it was read; a part that does not exist is None."""

    labels: tuple[str, ...]
    train: TextPart | None
    test: TextPart | None


def label_text(value: Any, labels: Sequence[str], first: int = 0) -> str:
    """A label's name; a whole number from ``first`` counts through ``labels``, others stand alone.

    >>> label_text(1, ("no", "yes")), label_text("1", ("no", "yes")), label_text("yes", ())
    ('yes', 'yes', 'yes')
    """
    text = str(value)
    if text in labels or isinstance(value, float):
        return text
    try:
        place = int(value) - first
    except (TypeError, ValueError):
        return text
    return labels[place] if 0 <= place < len(labels) else text


def occurring(part: TextPart) -> tuple[str, ...]:
    """All labels of some examples, sorted."""
    return tuple(sorted({example.label for example in part.examples}))


def checked(
    part: TextPart, task: str, labels: Sequence[str], settings: LanguageStreamSettings
) -> tuple[list[Example], list[str]]:
    """The examples that are used, and notes on the others."""
    notes = []
    kept = list(enumerate(part.examples))
    empty = [number for number, example in kept if example.empty]
    if empty:
        if settings.empty_texts == "stop":
            raise ValueError(
                f"{part.where}: every example must have a text, got an empty one in "
                f"{_places(empty)}; stream.empty_texts='drop' leaves such examples out"
            )
        kept = [(number, example) for number, example in kept if not example.empty]
        notes.append(f"{task}: {len(empty)} examples with empty text left out ({_places(empty)})")
    known = set(labels)
    unknown = [number for number, example in kept if example.label not in known]
    if unknown:
        counts = Counter(part.examples[number].label for number in unknown)
        what = ", ".join(f"{label!r} {count}x" for label, count in counts.most_common(SHOWN))
        if settings.unknown_labels == "stop":
            raise ValueError(
                f"{part.where}: labels must be among {', '.join(labels)}; got {what} in "
                f"{_places(unknown)}; stream.unknown_labels may be 'keep' or 'drop'"
            )
        fate = "kept, never right" if settings.unknown_labels == "keep" else "left out"
        total = len(part.examples)
        notes.append(
            f"{task}: {len(unknown)} of {total} examples of {_file(part.where)} have labels "
            f"outside the label set ({what}): {fate}"
        )
        if settings.unknown_labels == "drop":
            kept = [(number, example) for number, example in kept if example.label in known]
    if not kept:
        raise ValueError(f"{part.where}: there must be at least one usable example, got none")
    return [example for _, example in kept], notes


def _places(numbers: Sequence[int]) -> str:
    """Positions for people, counted from 0."""
    shown = ", ".join(str(number) for number in numbers[:SHOWN])
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return f"example {shown}{more}"


def _file(where: str) -> str:
    """The last part of a path: records hold no folders of a machine."""
    return where.replace("\\", "/").rsplit("/", 1)[-1]
