"""Write files that are either whole or absent."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path, beside: Path | None = None) -> Iterator[Path]:
    """A temporary path in the same folder that takes the place of ``path`` when all went well.

    A killed process leaves its temporary file behind. Where only one writes at a time, a fixed name
    ``beside`` lets the next attempt overwrite it, so that such files do not pile up.
    """
    temporary = beside or _unused(path)
    try:
        yield temporary
        temporary.chmod(0o644)  # mkstemp's files are private; results are for everyone
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _unused(path: Path) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    return Path(name)


def write_bytes(path: Path, content: bytes, beside: Path | None = None) -> None:
    """Write beside the goal and rename: a reader never sees half a file."""
    with replacing(path, beside) as temporary, temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def write_text(path: Path, text: str) -> None:
    """Write atomically, in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write atomically; NaN and infinity, which JSON does not have, are errors."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
