"""What a record says about the machine, the software and the files a run used."""

import hashlib
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from risegrad.lab.cores import cores
from risegrad.lab.grid import LOCATIONS

PACKAGES = (
    "risegrad", "torch", "numpy", "torchvision", "timm", "transformers", "peft", "accelerate",
    "datasets", "tokenizers", "safetensors", "scikit-learn", "ray",
)  # fmt: skip


def environment() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": cores(),
        "device": _device(),
        "threads": _threads(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def memory() -> dict[str, int]:
    """The largest this process ever was, here and on the accelerator."""
    found = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    torch = _torch()
    if torch is not None and torch.cuda.is_available():
        found["peak_device_bytes"] = int(torch.cuda.max_memory_allocated())
    return found


def git() -> dict[str, Any]:
    """Commit of the source tree and whether it was changed since; nothing if it is no checkout."""
    here = Path(__file__).resolve()
    try:
        # Installed into an environment inside another project's checkout, that one is not ours.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        commit = _git(here.parent, "rev-parse", "HEAD")
        dirty = _git(here.parent, "status", "--porcelain", "--", ":/src")
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": commit, "dirty": bool(dirty)}


def inputs(settings: Any) -> dict[str, Any]:
    """The files that the settings point to, by place: name and what is in them.

    A folder is known by its files' names and sizes: reading a whole data set again for every run
    would take longer than some runs.
    """
    return {place: fingerprint(path) for place, path in _files(settings)}


def fingerprint(path: Path) -> dict[str, Any]:
    if path.is_file():
        with path.open("rb") as stream:
            return {"name": path.name, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
    files = sorted(file for file in path.rglob("*") if file.is_file())
    lines = [f"{file.relative_to(path).as_posix()} {file.stat().st_size}\n" for file in files]
    listing = hashlib.sha256("".join(lines).encode()).hexdigest()
    return {"name": path.name, "files": len(files), "listing_sha256": listing}


def _files(settings: Any, place: str = "") -> Iterator[tuple[str, Path]]:
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield from _files(value, f"{place}.{key}".lstrip("."))
    elif isinstance(settings, list):
        for number, value in enumerate(settings):
            yield from _files(value, f"{place}[{number}]")
    elif place.rpartition(".")[2].partition("[")[0] in LOCATIONS and isinstance(settings, str):
        yield from [(place, Path(settings))] if settings and Path(settings).exists() else []


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _torch() -> Any:
    """Only if the run used it: importing it to say that it is there would be silly."""
    return sys.modules.get("torch")


def _device() -> str:
    torch = _torch()
    if torch is not None and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return "cpu"


def _threads() -> int | None:
    torch = _torch()
    return None if torch is None else int(torch.get_num_threads())
