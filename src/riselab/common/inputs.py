"""What a run reads: files are known by their content, things on the hub by name and revision.

Where something lies and what it is called there is no part of what it is. Reading a data set again
for every run would take longer than some runs, so the hash of a path is kept in the user's cache,
beside what the file system says of its files: size, number and the times of the last changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Literal

from risegrad.common.files import write_json
from riselab.common.folders import cache_folder

ESSENTIAL = ("sha256", "hub", "revision", "known", "missing", "listing_sha256")
"""Of what is said about an input, the part that makes a difference. The last is in old records:
they knew a folder by the names and sizes of its files."""

SETTLED = 2.0
"""Seconds. A file may change twice within one tick of the clock of a file system: what changed more
recently than this is not kept in the cache."""

COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Local:
    """A file, or a folder: all of it, or ``parts`` of it, as far as they are there."""

    path: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hub:
    """A model or a dataset on the Hugging Face hub, by its full name."""

    name: str
    kind: Literal["model", "dataset"]
    revision: str = "main"


@dataclass(frozen=True)
class Known:
    """Something that its reader compares with published checksums: its name says it all.

    It may not be there yet; ``path`` is where it is looked for.
    """

    name: str
    path: str


Reading = Local | Hub | Known
Inputs = dict[str, dict[str, Any]]
"""By the dotted place of the setting that names it: what was read there."""


def readings_of(settings: Any) -> dict[str, Reading]:
    """What a run with these settings reads, as its method ``reads`` says; without one, nothing."""
    reads = getattr(settings, "reads", None)
    found: dict[str, Reading] = reads() if reads else {}
    return found


def look_at(readings: Mapping[str, Reading]) -> Inputs:
    """What is there now."""
    return {place: describe(reading) for place, reading in readings.items()}


def describe(reading: Reading) -> dict[str, Any]:
    """What a record says of one input: its name, its revision, or its content's hash."""
    if isinstance(reading, Known):
        return {"known": reading.name}
    if isinstance(reading, Hub):
        return {"hub": reading.name, "revision": _commit(reading) or reading.revision}
    return _content(reading)


def essential(inputs: Mapping[str, Mapping[str, Any]]) -> Inputs:
    """Without names and counts, which tell a reader something but make no difference."""
    return {
        place: {key: found[key] for key in ESSENTIAL if key in found}
        for place, found in inputs.items()
    }


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The places where something else is read now, in words.

    A revision that was not known on one side, because nothing had been fetched yet, is no
    contradiction.
    """
    places = sorted(before.keys() | now.keys())
    pairs = ((place, before.get(place, {}), now.get(place, {})) for place in places)
    return [f"{p} ({words(a)}, now {words(b)})" for p, a, b in pairs if not _agree(a, b)]


def words(found: Mapping[str, Any]) -> str:
    """One input for a message: short, and enough to distinguish two."""
    if "hub" in found:
        return f"{found['hub']} at {str(found.get('revision', ''))[:12]}"
    if content := found.get("sha256", found.get("listing_sha256")):
        return f"{found.get('name', 'content')} {str(content)[:12]}"
    missing = f"no {found['missing']}" if "missing" in found else "nothing"
    return str(found.get("known", missing))


def _agree(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    first, second = (essential({"": found})[""] for found in (a, b))
    if "hub" in first and first.get("hub") == second.get("hub"):
        revisions = [str(found.get("revision", "")) for found in (first, second)]
        return revisions[0] == revisions[1] or not all(map(COMMIT.fullmatch, revisions))
    return first == second


def _commit(reading: Hub) -> str | None:
    """The commit that a revision stands for, if the hub's cache on this machine has it."""
    if COMMIT.fullmatch(reading.revision):
        return reading.revision
    folder = f"{reading.kind}s--{reading.name.replace('/', '--')}"
    try:
        text = (_hub_cache() / folder / "refs" / reading.revision).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return text.strip() if COMMIT.fullmatch(text.strip()) else None


def _hub_cache() -> Path:
    """As huggingface_hub finds it, which need not be installed."""
    if given := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or f"{base}/huggingface").expanduser() / "hub"


def _content(reading: Local) -> dict[str, Any]:
    path = Path(reading.path).expanduser()
    try:
        if path.is_dir():
            places = [path / part for part in reading.parts] if reading.parts else [path]
            files = sorted({file for place in places for file in _below(place)})
            return {"name": path.name, "files": len(files), "sha256": _hash(path, files)}
        if path.is_file():
            return {"name": path.name, "sha256": _hash(path, [path])}
    except OSError as error:
        raise ValueError(f"{error.filename or path} cannot be read ({error.strerror})") from error
    return {"missing": path.name}


def _below(place: Path, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """The files in a folder, links followed, hidden ones left out; a link upwards is not taken."""
    if place.is_file():
        yield place
    if not place.is_dir():
        return
    state = place.stat()
    here = (state.st_dev, state.st_ino)
    if here in above:
        return
    for entry in os.scandir(place):
        if not entry.name.startswith("."):
            if entry.is_dir():
                yield from _below(Path(entry.path), above | {here})
            elif entry.is_file():
                yield Path(entry.path)


def _hash(root: Path, files: list[Path]) -> str:
    """Of one file its SHA-256; of a folder that of its files' names and SHA-256s."""
    started = time.time()
    states = [file.stat() for file in files]
    names = [file.relative_to(root).as_posix() for file in files]
    now = [
        f"{name}\0{s.st_size} {s.st_ino} {s.st_mtime_ns} {s.st_ctime_ns}\n"
        for name, s in zip(names, states, strict=True)
    ]
    key = hashlib.sha256("".join(now).encode("utf-8", "surrogateescape")).hexdigest()
    if found := _remembered(root, key):
        return found
    with ThreadPool(min(8, os.cpu_count() or 1)) as pool:
        hashes = pool.map(_sha256, files, chunksize=16)
    if files == [root]:
        found = hashes[0]
    else:
        lines = (f"{name}\0{one}\n" for name, one in zip(names, hashes, strict=True))
        found = hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
    newest = max((max(s.st_mtime, s.st_ctime) for s in states), default=0.0)
    if newest < started - SETTLED:
        _remember(root, key, found)
    return found


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _note(root: Path, key: str) -> Path | None:
    """The cache's file for one path and one set of its files."""
    folder = cache_folder("contents")
    where = f"{root.absolute()}\0{key}".encode("utf-8", "surrogateescape")
    return folder and folder / f"{hashlib.sha256(where).hexdigest()[:32]}.json"


def _remembered(root: Path, key: str) -> str | None:
    note = _note(root, key)
    if note is None:
        return None
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    fits = isinstance(found, dict) and found.get("files") == key
    text = found.get("sha256") if fits else None
    return text if isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) else None


def _remember(root: Path, key: str, content: str) -> None:
    note = _note(root, key)
    if note is None:
        return
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, {"files": key, "sha256": content})
    except OSError:
        return  # a cache that cannot be written costs time, nothing else
