"""Records: what a run leaves behind, one JSON file each; ``docs/records.md`` explains the fields.

``write_record`` checks what it writes with the reader's own rules, so that whatever it wrote can be
read, and seals it: what was changed afterwards is refused. Keys that this version does not know are
ignored; another ``schema`` is refused.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from risegrad.common.environment import environment
from risegrad.common.files import write_json
from risegrad.common.seal import SCHEMA, SEALED, digest, seal, sealed
from riselab.common.settings import read, short, wrong
from riselab.records.fields import Record

NAME = "record.json"
"""What a run calls its record; in a folder, other ``*.json`` files may be records too."""

LARGEST = 256 * 2**20  # bytes; a record is far smaller, a file beyond this is a mistake
DEEPEST = 40  # levels of objects and lists within each other


class RecordError(ValueError):
    """A file that cannot be used as a record: which, and why."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = Path(path), reason


class NotARecord(RecordError):
    """Readable JSON that is something else; no reason to worry where a folder was searched."""


def read_record(path: Path | str) -> Record:
    """The record in a file; a ``RecordError`` names the file and what is wrong with it."""
    path = Path(path)
    return _record(path, _load(path))


def read_records(paths: Iterable[Path | str]) -> tuple[list[Record], list[RecordError]]:
    """The records in files and folders, and what could not be read.

    In a folder, JSON that is no record at all is passed over unless it is called ``record.json``.
    """
    places = [Path(path) for path in paths]
    given = {place.resolve() for place in places}
    records: list[Record] = []
    problems: list[RecordError] = []
    for path in find_records(places):
        try:
            records.append(read_record(path))
        except NotARecord as error:
            if path.name == NAME or path.resolve() in given:
                problems.append(error)
        except RecordError as error:
            problems.append(error)
    return records, problems


def find_records(paths: Iterable[Path | str]) -> list[Path]:
    """The files that may be records, each once: files as given, ``*.json`` below folders, sorted.

    Hidden files and folders are left out: they are unfinished writes, caches and the like.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        for file in _below(path) if path.is_dir() else [path]:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def write_record(path: Path | str, content: dict[str, Any]) -> None:
    """Seal, check and write atomically: a reader sees the old file or the whole new one."""
    path = Path(path)
    content = sealed(_faithful(path, content))
    _record(path, content)
    write_json(path, content)


def rename_row(path: Path, row: Mapping[str, Any]) -> None:
    """Move a readable record to another row; everything else stays."""
    content: dict[str, Any] = _load(path)
    if content["row"] != row:
        write_json(path, content | {"row": dict(row)})


def _below(folder: Path) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = sorted(name for name in files if name.endswith(".json") and name[0] != ".")
        found += [Path(parent, name) for name in names if Path(parent, name).is_file()]
    return found


def _load(path: Path) -> Any:
    try:
        if path.stat().st_size > LARGEST:
            raise RecordError(path, f"larger than {LARGEST // 2**20} MiB: this is not a record")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(path, f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise RecordError(path, "is not UTF-8 text") from error
    if not text.strip():
        raise RecordError(path, "is empty")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(path, f"is not complete JSON ({error})") from error
    return _faithful(path, content)


def _faithful(path: Path, content: Any) -> Any:
    """Content that every JSON reader and UTF-8 can carry: no NaN, infinity or half a character."""
    if _deeper_than(DEEPEST, content):
        raise RecordError(path, f"is nested deeper than {DEEPEST} levels: this is not a record")
    try:
        json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RecordError(path, "has text that is not Unicode") from error
    except ValueError as error:
        raise RecordError(path, "has NaN or infinity; write null where undefined") from error
    except TypeError as error:
        raise RecordError(path, str(error)) from error
    return content


def _record(path: Path, content: Any) -> Record:
    if not isinstance(content, dict):
        raise NotARecord(path, f"a record must be an object, got {short(content)}")
    if not content.keys() & {"row", "result"}:
        raise NotARecord(path, "is not a record: neither row nor result")
    schema = content.get("schema")
    if type(schema) is not int:
        raise RecordError(path, str(wrong("schema", "an integer", schema)))
    if schema > SCHEMA:
        raise RecordError(path, f"has schema {schema}; this version reads up to {SCHEMA}")
    if schema < SCHEMA:
        raise RecordError(path, f"has schema {schema}, which does not name its data; run again")
    try:
        record = read(Record, {k: v for k, v in content.items() if k != "path"}, foreign=True)
    except ValueError as error:
        raise RecordError(path, str(error)) from error
    _check_unchanged(path, record, content)
    return replace(record, path=path)


def _check_unchanged(path: Path, record: Record, content: dict[str, Any]) -> None:
    """A record that was edited by hand is no record of a run."""
    if digest(content["identity"]) != record.id:
        raise RecordError(path, "was edited: its id is not that of its settings and inputs")
    if others := list(_others(record.identity.settings, record.config)):
        reason = f"was edited: config does not match its id in {', '.join(others)}"
        raise RecordError(path, reason)
    if content.get("seal") != seal(content):
        changed = ", ".join((*SEALED, "run.inputs"))
        raise RecordError(path, f"was edited: its seal does not match ({changed})")


def _others(own: Mapping[Any, Any], config: Mapping[Any, Any], above: str = "") -> Iterator[str]:
    """The places where the whole configuration says something else than its essence."""
    for key, value in own.items():
        found = config.get(key)
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            yield from _others(value, found, f"{above}{key}.")
        elif isinstance(value, list) and isinstance(found, list) and len(value) == len(found):
            numbered = dict(enumerate(value)), dict(enumerate(found))
            yield from _others(*numbered, f"{above}{key}.")
        elif found != value:
            yield f"{above}{key}"


def _deeper_than(levels: int, content: Any) -> bool:
    """Whether lists and objects are nested deeper than this; without recursion of its own."""
    inner = [content]
    for _ in range(levels):
        inner = [item for one in inner if isinstance(one, dict | list) for item in _items(one)]
    return any(isinstance(one, dict | list) for one in inner)


def _items(one: Any) -> Iterable[Any]:
    return one.values() if isinstance(one, dict) else one


def provenance() -> dict[str, Any]:
    """The commit and the software in one: for results that are no records."""
    return {"git": git(), **environment()}


def git() -> dict[str, Any]:
    """Commit of the source tree and whether it was changed since; empty without a checkout."""
    here = Path(__file__).resolve()
    try:
        top = Path(_git(here.parent, "rev-parse", "--show-toplevel")).resolve()
        # Installed into an environment inside another project's checkout, that one is not ours.
        if top / "src" / here.relative_to(here.parents[2]) != here:
            return {}
        commit = _git(here.parent, "rev-parse", "HEAD")
        dirty = _git(here.parent, "status", "--porcelain", "--untracked-files=all", "--", ":/src")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": commit, "dirty": bool(dirty)}


@cache
def loaded_git() -> dict[str, Any]:
    """``git`` as it was at the first run of this process: its sources have been loaded since."""
    return git()


def _git(folder: Path, *arguments: str) -> str:
    """Of the repository around ``folder``, whoever owns it and wherever this was called from."""
    command = ["git", "-C", str(folder), "-c", "safe.directory=*", *arguments]
    environment = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    return done.stdout.strip()
