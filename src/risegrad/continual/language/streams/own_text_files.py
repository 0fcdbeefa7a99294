"""Text tasks of one's own from files: tables by their columns, or folders."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from risegrad.continual.language.streams.benchmark_files import folder_source, read_json
from risegrad.continual.language.streams.own_text_tasks import TABLES, OwnTextTask
from risegrad.continual.language.streams.text_examples import (
    Example,
    TextPart,
    TextSource,
    label_text,
    occurring,
)

Row = Mapping[str, Any]


def read_own(name: str, own: OwnTextTask) -> TextSource:
    """A task from its folder or its files."""
    path = Path(own.path).expanduser()
    if not path.is_dir():
        train, test = (_part(name, own, file) if file else None for file in (own.path, own.test))
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


def _part(name: str, own: OwnTextTask, file: str) -> TextPart:
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


def _rows(path: Path) -> Iterable[Row]:
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind in (".csv", ".tsv"):
        return _delimited(path, "," if kind == ".csv" else "\t")
    if kind == ".jsonl":
        return _json_lines(path)
    if kind == ".json":
        return _checked_rows(path, read_json(path))
    if path.suffix == ".parquet":
        return _parquet(path)
    raise ValueError(f"{path}: must be one of {', '.join(TABLES)}, got {path.suffix!r}")


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text at byte {error.start}") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: is not a whole gzip file ({error})") from error


def _delimited(path: Path, delimiter: str) -> Iterable[Row]:
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), delimiter=delimiter, strict=True)
    try:
        for number, row in enumerate(reader):
            if None in row or None in row.values():
                raise ValueError(
                    f"{path}: example {number} must have as many fields as the first line has "
                    f"names ({len(reader.fieldnames or ())}), got others"
                )
            yield row
    except csv.Error as error:
        raise ValueError(f"{path}: line {reader.line_num} cannot be read ({error})") from error


def _json_lines(path: Path) -> Iterable[Row]:
    rows = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}: line {number} is not JSON ({error})") from error
    return _checked_rows(path, rows)


def _checked_rows(path: Path, rows: Any) -> list[Row]:
    if not isinstance(rows, list):
        raise ValueError(f"{path}: must be a list of examples, got {type(rows).__name__}")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(
                f"{path}: example {number} must be an object with names, got {type(row).__name__}"
            )
    return rows


def _parquet(path: Path) -> list[Row]:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    arrow: Any = importlib.import_module("pyarrow")
    try:
        rows: list[Row] = parquet.read_table(path).to_pylist()
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: is not a Parquet file that can be read ({error})") from error
    return rows
