"""What a record says about the machine, the software and the files a run used."""

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from risegrad.common.environment import environment, memory, watch_memory

__all__ = ["environment", "git", "loaded_git", "memory", "provenance", "watch_memory"]


def provenance() -> dict[str, Any]:
    """The commit and the software in one: for results that are no records."""
    return {"git": git(), **environment()}


def git() -> dict[str, Any]:
    """Commit of the source tree and whether it was changed since; empty without a checkout."""
    here = Path(__file__).resolve()
    try:
        top = Path(_git(here.parent, "rev-parse", "--show-toplevel")).resolve()
        # Installed into an environment inside another project's checkout, that one is not ours.
        if top / "src" / here.relative_to(here.parents[3]) != here:
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
