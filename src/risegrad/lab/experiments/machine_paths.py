"""Paths of this machine: full ones for workers, which may run elsewhere, and none for records."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from risegrad.common.run_inputs import Hub, Known, Local, Reading

Readings = Mapping[str, Reading]

_PART = r"""[^\s/\\'"`,;:()<>|]"""
PATH = re.compile(rf"(?<![\w.:/~-])(?:~?/|[A-Za-z]:[\\/])(?:{_PART}+[\\/])+{_PART}*")
"""A full path of at least two parts in the middle of a text."""


def absolute(plain: Any, readings: Readings, place: str = "") -> Any:
    """The settings with existing files by their full path."""
    if isinstance(plain, dict):
        return {key: absolute(value, readings, _join(place, key)) for key, value in plain.items()}
    reading = readings.get(place)
    if isinstance(reading, Local | Known) and isinstance(plain, str):
        path = Path(plain).expanduser()
        return str(path.absolute()) if path.exists() else plain
    return plain


def public(plain: Any, readings: Readings, place: str = "") -> Any:
    """The settings without this machine's folders: what is read by its last part, or hub name."""
    if isinstance(plain, dict):
        return {key: public(value, readings, _join(place, key)) for key, value in plain.items()}
    if isinstance(plain, list):
        return [public(value, readings, place) for value in plain]
    if not isinstance(plain, str) or not plain:
        return plain
    reading = readings.get(place)
    is_place = reading is not None and not isinstance(reading, Hub)
    return last_part(plain) if is_place or _is_full(plain) else plain


def last_part(path: str) -> str:
    """The file or folder name at the end of a path of any system."""
    kind = PureWindowsPath if PureWindowsPath(path).drive else PurePosixPath
    return kind(path).name or path


def without_paths(text: str, readings: Readings, *folders: Path) -> str:
    """A text for a record: paths below what was read from there on, all others by their end."""
    roots = [one.path for one in readings.values() if isinstance(one, Local | Known)]
    given = [Path(root).expanduser().absolute() for root in roots]
    for root in sorted({str(path) for path in (*given, *folders)}, key=len, reverse=True):
        text = text.replace(root, last_part(root))
    return PATH.sub(lambda found: last_part(found[0].rstrip("/\\")), text)


def _is_full(text: str) -> bool:
    full = PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()
    return full or text.startswith("~")


def _join(place: str, key: object) -> str:
    return f"{place}.{key}".lstrip(".")
