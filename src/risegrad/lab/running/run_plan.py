"""From an experiment to finished runs: what ``rise run`` and ``lab.run`` share."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from risegrad import plugins
from risegrad.common.atomic_files import output_folder
from risegrad.common.checks import check_choice
from risegrad.common.cores import cores
from risegrad.common.optional_imports import absent, lack
from risegrad.lab.experiments.experiment_file import Experiment, load_experiment
from risegrad.lab.experiments.run_cells import RunCell, choose, expand
from risegrad.lab.experiments.selection import Choice
from risegrad.lab.running import local_engine, workload
from risegrad.lab.running.engine import Engine
from risegrad.lab.running.preflight import preflight
from risegrad.lab.running.ray_engine import RayEngine
from risegrad.lab.running.run_display import display
from risegrad.lab.running.run_execution import order_for
from risegrad.lab.running.run_folder import placed, rename_rows
from risegrad.lab.running.run_schedule import Schedule, Tally
from risegrad.lab.running.run_selection import decided, selected
from risegrad.lab.running.run_trackers import check_trackers

MOST_WORKERS = 8


class MissingNeeds(RuntimeError):
    """Something that the runs need is not there, so none was started."""


@dataclass(frozen=True)
class RunOptions:
    """How runs are done; nothing here is part of what they are."""

    out: Path
    engine: str = "local"
    workers: int | None = None
    threads: int | None = None
    processes: int = 1
    address: str | None = None
    retry_failed: bool = False
    track: tuple[str, ...] = ()
    workload: str = workload.DEFAULT

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ("local", "ray"))
        for name in ("workers", "threads", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name} must be at least 1, got {value}")
        if self.engine == "ray" and absent("ray"):
            raise ValueError(lack("ray", "ray", "--engine ray"))
        check_trackers(self.track)

    def division(self, grid: int) -> tuple[int, int]:
        """Runs at a time, and threads of each process.

        The number of threads follows from the whole grid, not from what is left of it: it changes
        the order of sums, and a run that goes on tomorrow should come to the same digits.
        """
        here = cores()
        slots = max(1, (len(local_engine.devices()) or min(here, MOST_WORKERS)) // self.processes)
        workers = self.workers or min(slots, grid)
        return workers, self.threads or max(1, here // (workers * self.processes))

    def make_engine(self, grid: int) -> Engine:
        """The engine that the options ask for."""
        workers, threads = self.division(grid)
        if self.engine == "local":
            return local_engine.LocalEngine(workers, threads, self.processes)
        elsewhere = self.address or os.environ.get("RAY_ADDRESS")
        if elsewhere:
            return RayEngine(self.workers, self.threads or 1, elsewhere)
        return RayEngine(workers, threads)


@dataclass(frozen=True)
class RunPlan:
    """The chosen runs of an experiment."""

    experiment: Experiment
    cells: Sequence[RunCell]
    grid: int
    """how many runs the whole experiment has"""

    @property
    def decides(self) -> bool:
        """Whether runs on test data follow, of what these choose."""
        return any(cell.row.decides for cell in self.cells)


def plan_runs(
    place: str | Path, overrides: Sequence[str], only: Sequence[str], work: str
) -> RunPlan:
    """Read an experiment and choose among its runs."""
    experiment = load_experiment(place, overrides)
    grid = expand(experiment, workload.load(work).read_config)
    return RunPlan(experiment, choose(grid, only), len(grid))


def plan_selected(plan: RunPlan, options: RunOptions) -> tuple[list[Choice], RunPlan]:
    """What the runs that are done choose, and the runs on test data of it."""
    found = decided(placed(plan.cells, options.out), options.out)
    read_config = workload.load(options.workload).read_config
    return found, replace(plan, cells=selected(plan.experiment, found, read_config))


def do_runs(plan: RunPlan, options: RunOptions) -> tuple[Sequence[RunCell], Tally]:
    """Do the runs that are not done; the cells in their folders, and how they ended."""
    out = output_folder(options.out)
    cells, wanted = placed(plan.cells, out), plugins.ordered()
    rename_rows(cells, out)
    with display() as watcher:
        schedule = Schedule(
            cells,
            out,
            lambda cell: order_for(
                cell, out, options.workload, options.track, options.processes, wanted
            ),
            watcher,
        )
        schedule.sort(options.retry_failed)
        if schedule.queue:
            _start(schedule, plan.grid, out, options)
    return cells, schedule.tally


def _start(schedule: Schedule, grid: int, out: Path, options: RunOptions) -> None:
    work, (workers, _) = workload.load(options.workload), options.division(grid)
    if lacks := preflight(list(schedule.queue), work, out, workers):
        raise MissingNeeds(lacks)
    engine = options.make_engine(grid)
    try:
        schedule.run(engine)
    finally:
        engine.stop()
