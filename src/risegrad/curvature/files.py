"""Results as files that are either whole or not there."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write beside the goal and rename: a reader never sees half a file."""
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)  # mkstemp's files are private; results are for everyone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """NaN and infinity, which JSON does not have, are errors."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def writable_folder(path: Path) -> Path:
    """The folder, made if need be; fails now and not after the work."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise RuntimeError(
            f"--out must be a folder that can be written, got {str(path)!r} ({error.strerror})"
        ) from error
    return path
