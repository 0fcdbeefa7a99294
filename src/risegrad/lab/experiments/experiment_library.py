"""Where experiment files are: those that come with the package, by name, and any by its path."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from risegrad.common.settings import unknown

HERE = Path(__file__).resolve()
# Installed, they lie inside the package; in a checkout, beside ``src``.
PLACES = (HERE.parents[2] / "experiments", HERE.parents[4] / "experiments")


def experiments() -> dict[str, Path]:
    """The files that come with the package, by their name, which is also written in them."""
    return {name: found.path for name, found in library().items()}


@dataclass(frozen=True)
class LibraryEntry:
    """An experiment that comes along, as far as one reads it without checking it."""

    path: Path
    title: str
    question: str = ""


def library() -> dict[str, LibraryEntry]:
    """What comes along, by name. TOML without rows belongs to other commands and is passed over."""
    folder = next((place for place in PLACES if place.is_dir()), None)
    found = {}
    for path in sorted(folder.rglob("*.toml")) if folder else []:
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found[path.stem] = LibraryEntry(path, "(cannot be read)")
            continue
        if "rows" in content:
            title = str(content.get("title") or content.get("description", ""))
            found[path.stem] = LibraryEntry(path, title, str(content.get("question", "")))
    return found


def locate(place: str | Path) -> Path:
    """The file of an experiment; a ``ValueError`` says which names exist."""
    path, known = Path(place).expanduser(), experiments()
    if path.is_file():
        return path
    if str(place) in known:
        return known[str(place)]
    if path.suffix == ".toml" or path.parent != Path("."):
        raise ValueError(f"there is no file {str(place)!r}")
    raise ValueError(f"experiment {str(place)!r}: {unknown(str(place), known)}")
