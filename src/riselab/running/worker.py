"""One run after the other in a process of their own, each ordered by a line of JSON.

Started as ``python -m riselab.running.worker``.

Orders come on standard input, and for each a line with the answer goes to standard output; what a
run prints goes to its log. Standard input stays open as long as somebody is waiting: when it
closes, the one who ordered is gone, and this process goes too.
"""

import errno
import gc
import importlib
import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, cast

from risegrad.common import environment
from risegrad.common.seal import SCHEMA, digest
from riselab import plugins
from riselab.common.inputs import Inputs, Reading, differing, essential, look_at, readings_of
from riselab.experiments.cells import RunCell
from riselab.experiments.file import without_paths
from riselab.records import record
from riselab.records.record import write_record
from riselab.running import folder as run_lock
from riselab.running import processes as run_processes
from riselab.running.folder import BROKEN, CHECKPOINTS, ERROR, LOG, RECORD, STARTS, State, look
from riselab.running.progress import Progress
from riselab.running.trackers import TrackedRun, Tracking

WORKLOAD = ""
"""The name of a module that does the runs in place of ``riselab.continual.runs``, as tests do."""

Watch = Callable[[dict[str, Any]], None]
"""Hears how far a run is."""


class Workload(Protocol):
    """A module may also have two functions that are used where they are there.

    ``needs(settings, known)``: a mapping of ``missing`` (a sentence for everything that a run needs
    and is not there, with the way to get it), ``bytes`` (room for its checkpoints) and ``device``
    (torch's name of its kind, and in words). ``known`` is a dictionary in which it may keep what
    runs of one grid share.
    ``fetch(settings)``: download what runs would else download at once.
    ``seconds(settings)``: how long a run would take here, from a few timed steps.
    """

    def read_config(self, plain: Mapping[str, Any]) -> Any:
        """The settings as a frozen dataclass; a ``ValueError`` names the place of a mistake.

        Their method ``reads`` says what a run reads, by the dotted place of the setting that names
        it; ``riselab.common.inputs`` has the kinds of things to read. Without one, a run reads
        nothing.
        """

    def estimate(self, settings: Any) -> dict[str, Any]:
        """How much work a run is, in counts that add up over runs."""

    def perform(self, settings: Any, folder: Path, report: Watch) -> dict[str, Any]:
        """One run; resumes from what it left in ``folder`` before. Returns the record's result."""


def workload(name: str = "") -> Workload:
    """The module that does the runs; imported now, since it brings torch and all hosts."""
    if not (name or WORKLOAD):
        from riselab.continual import runs

        return runs
    try:
        return cast(Workload, importlib.import_module(name or WORKLOAD))
    except ImportError as error:
        raise RuntimeError(
            f"the workload {name or WORKLOAD!r} cannot be imported: {error}"
        ) from error


DONE, FAILED, ELSEWHERE, UNWRITABLE = "done", "failed", "elsewhere", "unwritable"
LOST = "lost"
"""A process died without an answer: killed, out of memory, its machine gone."""

CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT})
"""Errors that the next run would meet as well."""


@dataclass(frozen=True)
class RunOrder:
    """A cell and how to run it; plain data that any process can be given."""

    id: str
    experiment: str
    row: dict[str, Any]
    seed: int
    settings: dict[str, Any]
    config: dict[str, Any]
    inputs: dict[str, Any]
    identity: dict[str, Any]
    basis: dict[str, Any]
    folder: str
    workload: str
    track: list[str] = field(default_factory=list)
    """names of trackers"""
    processes: int = 1
    plugins: list[dict[str, str]] = field(default_factory=list)
    """those that the planning process had loaded"""

    def plain(self) -> dict[str, Any]:
        """The order as plain data, which a worker reads."""
        return asdict(self)


def order_for(
    cell: RunCell,
    out: Path,
    track: Sequence[str] = (),
    processes: int = 1,
    wanted: Sequence[dict[str, str]] = (),
    work: str = "",
) -> RunOrder:
    """The order that a cell becomes; ``wanted`` are the plugins that it needs."""
    return RunOrder(
        cell.id, cell.experiment, cell.row_plain(), cell.seed, cell.settings, cell.config,
        cell.inputs, cell.identity, cell.basis, str((out / cell.folder).absolute()),
        work or WORKLOAD, list(track), processes, list(wanted),
    )  # fmt: skip


def execute(order: RunOrder, watch: Watch | None = None) -> tuple[str, str]:
    """Do the run unless it is done; how it ended, and what is to be said about that. ``watch``
    hears how far the run is."""
    folder = Path(order.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with run_lock.held(folder):
            return _execute(order, folder, watch)
    except run_lock.Elsewhere as error:
        return ELSEWHERE, str(error)
    except OSError as error:
        return UNWRITABLE, unwritable(folder, error)


def unwritable(folder: Path, error: OSError) -> str:
    """The error text for a folder that cannot be written."""
    return f"{folder} cannot be written ({error.strerror or error})"


def _execute(order: RunOrder, folder: Path, watch: Watch | None) -> tuple[str, str]:
    state, _ = look(folder, order)
    if state is State.DONE:  # by someone else, between the decision and the lock
        return DONE, ""
    if state is State.BROKEN:
        os.replace(folder / RECORD, folder / BROKEN)
    tidy(folder)
    starts = _note_start(folder)
    # Now: sources may change meanwhile.
    clock, git = time.perf_counter(), record.loaded_git()
    try:
        settings = read_settings(order)
        readings = readings_of(settings)
        _look_at(order, readings)
        if order.processes > 1:
            result, memory = run_processes.together(order)
        else:
            result, memory = perform(order, settings, True, watch)
        seconds = {"total": round(time.perf_counter() - clock, 3)} | result.pop("seconds", {})
        notes = [without_paths(note, readings, folder) for note in result.get("notes", [])]
        inputs = _look_at(order, readings)
        run = _run(order, starts, seconds, inputs) | {"git": git, "memory": memory}
        write_record(folder / RECORD, _record(order, result | {"notes": notes}, run))
        # The record is what a run leaves; its last states would fill disks for nothing.
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    except run_processes.Killed as error:
        return LOST, str(error)
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
            return UNWRITABLE, unwritable(folder, error)
        fail(folder, traceback.format_exc())
        return FAILED, f"{type(error).__name__}: {error}"
    return DONE, ""


def tidy(folder: Path) -> None:
    """Remove what a killed or failed attempt left."""
    (folder / ERROR).unlink(missing_ok=True)
    for leftover in folder.glob(".record-*"):
        leftover.unlink(missing_ok=True)


def fail(folder: Path, text: str) -> None:
    """Leave the reason in the run's folder."""
    (folder / ERROR).write_text(text, encoding="utf-8", errors="replace")


def _note_start(folder: Path) -> list[str]:
    """Add a line for this start; the moments of all of them."""
    with (folder / STARTS).open("a+", encoding="utf-8") as stream:
        stream.write(f"{_now()}\n")
        stream.flush()
        stream.seek(0)
        return stream.read().split()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_settings(order: RunOrder) -> Any:
    """The settings of a run, with the plugins that they may name."""
    plugins.load_again(order.plugins)
    return workload(order.workload).read_config(order.settings)


def perform(
    order: RunOrder, settings: Any, first: bool = True, watch: Watch | None = None
) -> tuple[dict[str, Any], dict[str, int]]:
    """The work itself: its result, and the memory it took. Only the ``first`` process reports."""
    folder, work = Path(order.folder), workload(order.workload)
    environment.watch_memory()
    tracking = Tracking(order.track if first else (), _tracked(order))
    report: Watch = Progress(folder, tracking, watch) if first else lambda news: None
    try:
        result = dict(work.perform(settings, folder, report))
        tracking.finish(result.get("metrics", {}))
        return result, environment.memory()
    finally:
        tracking.close()


def _tracked(order: RunOrder) -> TrackedRun:
    label = str(order.row["label"])
    return TrackedRun(
        order.id, order.experiment, label, order.seed, Path(order.folder), order.config
    )


def _look_at(order: RunOrder, readings: dict[str, Reading]) -> Inputs:
    """What is read, before and after the work; a run has nothing to say of anything else."""
    inputs = look_at(readings)
    if others := differing(order.inputs, inputs):
        raise RuntimeError(
            f"what the run reads was changed after it was planned: {', '.join(others)}; "
            f"the same command plans it again"
        )
    return inputs


def _record(order: RunOrder, result: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "id": order.id,
        "identity": order.identity,
        "experiment": order.experiment,
        "row": order.row,
        "seed": order.seed,
        "config": order.config,
        "result": result,
        "run": run,
    }


def _run(
    order: RunOrder, starts: list[str], seconds: dict[str, Any], inputs: Inputs
) -> dict[str, Any]:
    known_as = digest(order.identity | {"inputs": essential(inputs)})
    return {
        "started": starts[0],
        "finished": _now(),
        "resumed": len(starts) - 1,
        "seconds": seconds,
        "environment": environment.environment(),
        "inputs": inputs,
        "plugins": {origin.name: origin.version for origin in plugins.loaded()},
    } | ({"known_as": known_as} if known_as != order.id else {})


THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
LONGEST = 4000  # characters of an answer; a pipe holds them without a reader


def thread_limits(threads: int) -> dict[str, str]:
    """Environment variables that must be set before numpy and torch are imported."""
    return dict.fromkeys(THREADS, str(threads))


def main() -> None:
    """Do what is ordered, and answer how it ended, until nobody is waiting any more."""
    answers = os.dup(1)
    os.dup2(2, 1)
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_follow, args=(orders,), daemon=True).start()
    while True:
        outcome, message = logged(RunOrder(**json.loads(orders.get())))
        os.write(answers, json.dumps([outcome, message[:LONGEST]]).encode() + b"\n")
        gc.collect()  # after the answer: what the run held must not stay for the next


def logged(order: RunOrder) -> tuple[str, str]:
    """Do a run; what it prints goes to the log in its folder."""
    folder = Path(order.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        return UNWRITABLE, unwritable(folder, error)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        return execute(order)
    finally:  # what was printed belongs to this run's log, not to the next one's
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()


def _follow(orders: "queue.SimpleQueue[bytes]") -> None:
    """Pass on orders; end with the parent process, and end helpers (such as data loaders) too."""
    rest = b""
    while part := os.read(0, 2**16):  # not sys.stdin, whose lock a forked helper would wait for
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            orders.put(line)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
