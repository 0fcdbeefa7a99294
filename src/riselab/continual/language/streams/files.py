"""Texts with labels from the benchmark's folders, from files of one's own, or from the hub."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import re
import reprlib
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from riselab.common.inputs import Hub, Local, Reading
from riselab.continual.language.streams.settings import (
    TABLES,
    LanguageStreamSettings,
    OwnTextTask,
    TextTask,
)

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


def label_text(value: Any, labels: Sequence[str]) -> str:
    """A label's name; a whole number from 0 counts through ``labels``, others stand alone.

    >>> label_text(1, ("no", "yes")), label_text("1", ("no", "yes")), label_text("yes", ())
    ('yes', 'yes', 'yes')
    """
    text = str(value)
    if text in labels or isinstance(value, float):
        return text
    try:
        place = int(value)
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


SUFFIXES = (".json", ".json.gz")


def read_folder(data: str, task: TextTask) -> TextSource | None:
    """A task from the first of its ``folders`` that has a split; None if none has."""
    root = Path(data).expanduser()
    if not data or not root.is_dir():
        raise FileNotFoundError(
            f"data must be a folder with one folder per task, got {data!r}"
            + ("" if data else ": give it with --set stream.data=PATH")
        )
    sources = (folder_source(root / name, task.labels) for name in task.folders)
    return next((source for source in sources if source is not None), None)


def folder_source(folder: Path, labels: tuple[str, ...]) -> TextSource | None:
    """What one folder has; ``labels`` are those of a task without a file of its labels."""
    train, test = (_part(folder, split) for split in ("train", "test"))
    there = train or test
    if there is None:
        return None
    return TextSource(_labels(folder) or labels or occurring(there), train, test)


def _part(folder: Path, split: str) -> TextPart | None:
    path = _find(folder, split)
    if path is None:
        return None
    content = read_json(path)
    if not isinstance(content, list):
        raise ValueError(f"{path}: must be a list of examples, got {type(content).__name__}")
    return TextPart(str(path), tuple(_example(path, n, item) for n, item in enumerate(content)))


def _example(path: Path, number: int, item: Any) -> Example:
    if isinstance(item, dict):
        sentence, label = item.get("sentence"), item.get("label")
        if isinstance(sentence, str) and isinstance(label, str):
            return Example(sentence, label)
    raise ValueError(
        f'{path}: example {number} must have the texts "sentence" and "label", '
        f"got {reprlib.repr(item)}"
    )


def _labels(folder: Path) -> tuple[str, ...]:
    path = _find(folder, "labels")
    if path is None:
        return ()
    content = read_json(path)
    fits = isinstance(content, list) and all(isinstance(label, str) for label in content)
    if not fits or not content or len(set(content)) < len(content):
        raise ValueError(
            f"{path}: must be a list of different label texts, got {reprlib.repr(content)}"
        )
    return tuple(content)


def _find(folder: Path, stem: str) -> Path | None:
    candidates = (folder / f"{stem}{suffix}" for suffix in SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


BROKEN = (ValueError, OSError, EOFError, zlib.error, csv.Error, RecursionError)
"""What readers raise for damaged files."""


def _text(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")


def read_json(path: Path) -> Any:
    """The content of a JSON file; a ``ValueError`` names the file and the place of a mistake."""
    try:
        return json.loads(_text(path))
    except BROKEN as error:
        raise ValueError(f"{path}: cannot be read as JSON ({error})") from error


Row = Mapping[str, Any]


def read_own(name: str, own: OwnTextTask) -> TextSource:
    """A task from its folder or its files."""
    path = Path(own.path).expanduser()
    if not path.is_dir():
        files = (own.path, own.test)
        train, test = (_own_part(name, own, file) if file else None for file in files)
        assert train is not None  # one of path and hub is given
        return TextSource(own.labels or occurring(train), train, test)
    if own.test:
        raise ValueError(
            f"stream.own.{name}.test belongs to a file; {own.path!r} is a folder, which has its "
            f"own train and test files; got {own.test!r}"
        )
    source = folder_source(path, own.labels)
    if source is None:
        raise FileNotFoundError(
            f"stream.own.{name}.path must be a folder with train.json or test.json, plain or .gz, "
            f"got {own.path!r}, which has neither"
        )
    return source


def _own_part(name: str, own: OwnTextTask, file: str) -> TextPart:
    path = Path(file).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"the task {name!r} needs a file or a folder as stream.own.{name}.path (and .test), "
            f"got {file!r}, which is not there"
        )
    return TextPart(str(path), tuple(_examples(name, own, path)))


def _examples(name: str, own: OwnTextTask, path: Path) -> Iterable[Example]:
    for number, row in enumerate(_rows(path)):
        for setting, column in (("text", own.text), ("label", own.label)):
            if column not in row:
                there = ", ".join(map(repr, row)) or "none"
                raise ValueError(
                    f"{path}: example {number} must have the column {column!r} that "
                    f"stream.own.{name}.{setting} names, got {there}"
                )
        text, label = row[own.text], row[own.label]
        if label is None or label == "":
            raise ValueError(f"{path}: example {number} must have a label, got none")
        yield Example("" if text is None else str(text), label_text(label, own.labels))


def _rows(path: Path) -> list[Row]:
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind not in TABLES:
        raise ValueError(f"{path}: must be one of {', '.join(TABLES)}, got {path.suffix!r}")
    if kind == ".json":
        return _checked(path, read_json(path))
    rows: list[Row] = []
    try:
        if kind == ".parquet":
            rows = importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
        elif kind == ".jsonl":
            for line in _text(path).split("\n"):
                rows += [json.loads(line)] if line.strip() else []
        else:
            file, delimiter = io.StringIO(_text(path), newline=""), "," if kind == ".csv" else "\t"
            rows = list(csv.DictReader(file, delimiter=delimiter, strict=True))
    except BROKEN as error:  # those of pyarrow, too, are ValueErrors and OSErrors
        place = f"example {len(rows)}, " if kind == ".jsonl" else ""
        raise ValueError(f"{path}: {place}cannot be read as {kind[1:]} ({error})") from error
    return _checked(path, rows, kind in (".csv", ".tsv"))


def _checked(path: Path, rows: Any, by_fields: bool = False) -> list[Row]:
    if not isinstance(rows, list):
        raise ValueError(f"{path}: must be a list of examples, got {type(rows).__name__}")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(
                f"{path}: example {number} must be an object with names, got {type(row).__name__}"
            )
        if by_fields and (None in row or None in row.values()):
            raise ValueError(
                f"{path}: example {number} must have as many fields as the first line has names, "
                "got others"
            )
    return rows


Choose = Callable[[str, int], Sequence[int]]
"""Of "train" or "test" and a number of rows: the rows that are used."""


def read_hub(name: str, own: OwnTextTask, choose: Choose) -> TextSource:
    """A task's examples, downloaded or from the local cache of ``datasets``.

    Some datasets have millions of rows, so only the chosen ones are looked at.
    """
    datasets: Any = importlib.import_module("datasets")
    try:
        found = datasets.load_dataset(own.hub, own.config or None)
    # A RuntimeError is a dataset that is a script: newer versions of the library run none.
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise FileNotFoundError(
            f"{name}: the dataset {own.hub!r} is not on the hub or not reachable "
            f"({type(error).__name__}: {error}); give files as stream.own.{name}.path"
        ) from error
    splits = {"train": "train", "test": own.test or "test"}
    if any(split not in found for split in splits.values()):
        raise ValueError(
            f"{name}: {own.hub!r} must have the splits {' and '.join(splits.values())}, "
            f"got {', '.join(found)}"
        )
    labels = own.labels or tuple(getattr(found["train"].features.get(own.label), "names", ()))
    parts = []
    for purpose, split in splits.items():
        rows = found[split].select(choose(purpose, len(found[split])))
        if missing := {own.text, own.label} - {*rows.column_names}:
            raise ValueError(
                f"{name}: {own.hub!r} must have the column {', '.join(sorted(missing))}, "
                f"got {', '.join(rows.column_names)}"
            )
        pairs = ((row[own.text], label_text(row[own.label], labels)) for row in rows)
        examples = (Example("" if text is None else str(text), label) for text, label in pairs)
        parts.append(TextPart(f"{own.hub}:{split}", tuple(examples)))
    return TextSource(labels or occurring(parts[0]), *parts)


def read_source(settings: LanguageStreamSettings, name: str, choose: Choose) -> TextSource | None:
    """A task's examples; None where no folder of its name has any."""
    own = settings.own.get(name)
    if own is None:
        return read_folder(settings.data, settings.task(name))
    return read_hub(name, own, choose) if own.hub else read_own(name, own)


def texts_of(settings: LanguageStreamSettings) -> dict[str, Reading]:
    """What a stream reads, by the setting that names it: its tasks, no others."""
    found: dict[str, Reading] = {}
    folders: list[str] = []
    for name in settings.order:
        own = settings.own.get(name)
        if own is None:
            folders += settings.task(name).folders
        elif own.hub:
            found[f"stream.own.{name}.hub"] = Hub(own.hub, "dataset")
        else:
            files = {"path": own.path, "test": own.test}
            found |= {f"stream.own.{name}.{at}": Local(file) for at, file in files.items() if file}
    if folders and settings.data:
        found["stream.data"] = Local(settings.data, tuple(folders))
    return found
