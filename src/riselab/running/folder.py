"""What a run's folder says about it, at the cost of opening one file."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from riselab.common.settings import flat
from riselab.experiments.cells import SHORT, RunCell
from riselab.records import record
from riselab.records.fields import Record
from riselab.records.record import RecordError

RECORD, BROKEN, ERROR = record.NAME, f"{record.NAME}.broken", "error.txt"
STARTS, LOG, CHECKPOINTS = "starts.txt", "log.txt", "checkpoints"


class State(Enum):
    """What a run's folder says about it."""

    NEW = "new"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    DONE = "done"
    BROKEN = "broken"
    """there is a record, but it cannot be read or belongs to another run"""


class Wanted(Protocol):
    """What a run is looked up by."""

    @property
    def id(self) -> str:
        """The run's identifier."""

    @property
    def basis(self) -> Mapping[str, Any]:
        """What the identifier was made from."""


def look(folder: Path, wanted: Wanted) -> tuple[State, str]:
    """The state, and for ``BROKEN`` what is wrong with the record."""
    path = folder / RECORD
    try:
        found = record.read_record(path)
    except RecordError as error:
        if os.path.lexists(path):
            return State.BROKEN, error.reason
    else:
        reason = _other(found, wanted)
        return (State.BROKEN, reason) if reason else (State.DONE, "")
    if (folder / ERROR).exists():
        return State.FAILED, ""
    return (State.INTERRUPTED if (folder / STARTS).exists() else State.NEW), ""


def _other(found: Record, wanted: Wanted) -> str:
    """Why this is the record of another run; empty if it is not.

    Defaults are no part of an id. A default that has been changed since is seen in the settings.
    """
    if wanted.id not in (found.id, found.run.known_as):
        return f"is the record of another run ({found.id[:12]})"
    config = flat(found.config)
    changed = [place for place, v in wanted.basis.items() if config.get(place, v) != v]
    return f"was made with other defaults ({', '.join(changed)})" if changed else ""


def placed(cells: Sequence[RunCell], out: Path) -> list[RunCell]:
    """The cells with the folders that they have already, whatever their rows were called then."""
    if not cells:
        return []
    top = out / cells[0].experiment
    try:
        names = sorted(entry.name for entry in os.scandir(top) if entry.is_dir())
    except OSError:
        return list(cells)
    names.sort(key=lambda name: (top / name / RECORD).exists())  # of two, the one with a record
    known = {name.rpartition("-")[2]: name for name in names}
    if any("hub" in found for cell in cells for found in cell.inputs.values()):
        known = _by_revision(top, names) | known
    return [replace(cell, kept=known.get(cell.id[:SHORT], "")) for cell in cells]


def _by_revision(top: Path, names: Sequence[str]) -> dict[str, str]:
    """Folders of runs that began before the hub's revision was known, by the id with it."""
    found: dict[str, str] = {}
    for name in names:
        with suppress(RecordError):
            known_as = record.read_record(top / name / RECORD).run.known_as
            found |= {known_as[:SHORT]: name} if known_as else {}
    return found


def rename_rows(cells: Sequence[RunCell], out: Path) -> None:
    """Finished runs are put into the rows that the experiment file has now."""
    for cell in cells:
        folder = out / cell.folder
        if look(folder, cell)[0] is State.DONE:
            with suppress(OSError):  # an old name in a folder that cannot be written is no failure
                record.rename_row(folder / RECORD, cell.row_plain())


def records_of(cells: Sequence[RunCell], out: Path) -> list[Record]:
    """Those of the runs that are done; others have none."""
    places = [out / cell.folder / RECORD for cell in cells]
    return record.read_records(place for place in places if place.exists())[0]


def error_text(folder: Path) -> str:
    """The traceback of a failed run."""
    try:
        return (folder / ERROR).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


NAME = "lock"


class Elsewhere(RuntimeError):
    """Another process is at this run."""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the run's lock, or raise ``Elsewhere`` at once. The file stays, only the lock goes."""
    handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _acquire(handle):
            raise Elsewhere(holder(folder))
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int) -> bool:
    """Tried a few times: somebody may just be asking whether the lock is taken."""
    for _ in range(5):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def taken(folder: Path) -> bool:
    """Whether someone holds it now; a hint only, the truth is ``held``."""
    try:
        handle = os.open(folder / NAME, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who ask do not collide
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def holder(folder: Path) -> str:
    """Who took the lock last, in words."""
    try:
        return (folder / NAME).read_text(encoding="utf-8").strip() or "another process"
    except OSError:
        return "another process"
