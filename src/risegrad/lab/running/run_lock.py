"""One worker per run, on one machine or several that share a file system.

The kernel frees the lock when its holder dies, however that happens: none can be left behind.
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
