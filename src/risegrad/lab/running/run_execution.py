"""One run, in the process that calls this: lock, work, record."""

import errno
import os
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from risegrad import plugins
from risegrad.common.record_seal import digest
from risegrad.common.run_inputs import Inputs, Reading, differing, essential, look_at, readings_of
from risegrad.lab.experiments.machine_paths import without_paths
from risegrad.lab.experiments.run_cells import RunCell
from risegrad.lab.records import run_environment
from risegrad.lab.records.record import SCHEMA, write_record
from risegrad.lab.running import run_lock, run_processes, workload
from risegrad.lab.running.run_folder import BROKEN, CHECKPOINTS, ERROR, RECORD, STARTS, State, look
from risegrad.lab.running.run_progress import Progress
from risegrad.lab.running.run_trackers import TrackedRun, Tracking

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
        work or workload.DEFAULT, list(track), processes, list(wanted),
    )  # fmt: skip


def execute(order: RunOrder) -> tuple[str, str]:
    """Do the run unless it is done; how it ended, and what is to be said about that."""
    folder = Path(order.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with run_lock.held(folder):
            return _execute(order, folder)
    except run_lock.Elsewhere as error:
        return ELSEWHERE, str(error)
    except OSError as error:
        return UNWRITABLE, unwritable(folder, error)


def unwritable(folder: Path, error: OSError) -> str:
    """The error text for a folder that cannot be written."""
    return f"{folder} cannot be written ({error.strerror or error})"


def _execute(order: RunOrder, folder: Path) -> tuple[str, str]:
    state, _ = look(folder, order)
    if state is State.DONE:  # by someone else, between the decision and the lock
        return DONE, ""
    if state is State.BROKEN:
        os.replace(folder / RECORD, folder / BROKEN)
    tidy(folder)
    starts = _sign(folder)
    # Now: sources may change meanwhile.
    clock, git = time.perf_counter(), run_environment.loaded_git()
    try:
        readings = _readings(order)
        _look_at(order, readings)
        result, memory = run_processes.together(order) if order.processes > 1 else perform(order)
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


def _sign(folder: Path) -> list[str]:
    """Add a line for this start; the moments of all of them."""
    with (folder / STARTS).open("a+", encoding="utf-8") as stream:
        stream.write(f"{_now()}\n")
        stream.flush()
        stream.seek(0)
        return stream.read().split()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def perform(order: RunOrder, first: bool = True) -> tuple[dict[str, Any], dict[str, int]]:
    """The work itself: its result, and the memory it took. Only the ``first`` process reports."""
    folder, work = Path(order.folder), _work(order)
    run_environment.watch_memory()
    tracking = Tracking(order.track if first else (), _tracked(order))
    report: Callable[[dict[str, Any]], None] = (
        Progress(folder, tracking) if first else lambda news: None
    )
    try:
        result = dict(work.perform(work.read_config(order.settings), folder, report))
        tracking.finish(result.get("metrics", {}))
        return result, run_environment.memory()
    finally:
        tracking.close()


def _work(order: RunOrder) -> workload.Workload:
    """The workload, with the plugins that it may be asked for."""
    plugins.load_again(order.plugins)
    return workload.load(order.workload)


def _tracked(order: RunOrder) -> TrackedRun:
    label = str(order.row["label"])
    return TrackedRun(
        order.id, order.experiment, label, order.seed, Path(order.folder), order.config
    )


def _readings(order: RunOrder) -> dict[str, Reading]:
    return readings_of(_work(order).read_config(order.settings))


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
        "environment": run_environment.environment(),
        "inputs": inputs,
        "plugins": {origin.name: origin.version for origin in plugins.loaded()},
    } | ({"known_as": known_as} if known_as != order.id else {})
