"""The O-LoRA benchmark's folders: a list of ``{"sentence", "label"}`` per split, plain or gzip."""

from __future__ import annotations

import gzip
import json
import reprlib
import zlib
from pathlib import Path
from typing import Any

from risegrad.continual.language.streams.text_examples import (
    Example,
    TextPart,
    TextSource,
    occurring,
)
from risegrad.continual.language.streams.text_tasks import TextTask

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


def read_json(path: Path) -> Any:
    """The content of a JSON file; a ``ValueError`` names the file and the place of a mistake."""
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: is not a whole gzip file ({error})") from error
    try:
        return json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}: is not JSON at line {error.lineno} column {error.colno} "
            f"(character {error.pos}): {error.msg}"
        ) from error
    except RecursionError as error:
        raise ValueError(f"{path}: is nested too deeply for a list of examples") from error
    except ValueError as error:  # a number of thousands of digits
        raise ValueError(f"{path}: is not JSON that can be read ({error})") from error
