"""Where results go and what can be made again stays: the folder of ``--out``, the user's cache."""

import os
import tempfile
from pathlib import Path


def output_folder(path: Path) -> Path:
    """The folder of ``--out``, created if missing; fails now and not after the work."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:  # a ValueError is a null byte in the name
        raise RuntimeError(
            f"--out must be a folder that can be written, got {str(path)!r} "
            f"({getattr(error, 'strerror', None) or error})"
        ) from error
    return path


def cache_folder(part: str) -> Path | None:
    """``$RISEGRAD_CACHE/part``, or in the user's cache; None if that variable is "none"."""
    given = os.environ.get("RISEGRAD_CACHE", "")
    if given == "none":
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(given) if given else base / "risegrad") / part
