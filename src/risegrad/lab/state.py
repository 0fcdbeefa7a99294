"""What a run's folder says about it, at the cost of opening one file."""

import os
from enum import Enum
from pathlib import Path

from risegrad.lab import records
from risegrad.lab.record_parts import RecordError

RECORD, BROKEN, ERROR = records.NAME, f"{records.NAME}.broken", "error.txt"
STARTS, LOG, CHECKPOINTS = "starts.txt", "log.txt", "checkpoints"


class State(Enum):
    NEW = "new"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    DONE = "done"
    BROKEN = "broken"
    """there is a record, but it cannot be read or belongs to another run"""


def look(folder: Path, identity: str) -> tuple[State, str]:
    """The state, and for ``BROKEN`` what is wrong with the record."""
    path = folder / RECORD
    try:
        found = records.read_record(path)
    except RecordError as error:
        if os.path.lexists(path):
            return State.BROKEN, error.reason
    else:
        if found.id == identity:
            return State.DONE, ""
        return State.BROKEN, f"is the record of another run ({found.id[:12]})"
    if (folder / ERROR).exists():
        return State.FAILED, ""
    return (State.INTERRUPTED if (folder / STARTS).exists() else State.NEW), ""


def error_text(folder: Path) -> str:
    """The traceback of a failed run."""
    try:
        return (folder / ERROR).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
