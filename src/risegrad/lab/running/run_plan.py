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
from risegrad.lab.running.preflight import NO_GPU, Preflight, fetch, preflight, seconds_of, told
from risegrad.lab.running.ray_engine import RayEngine
from risegrad.lab.running.run_display import display, duration
from risegrad.lab.running.run_execution import order_for
from risegrad.lab.running.run_folder import State, look, placed, rename_rows
from risegrad.lab.running.run_schedule import Schedule, Tally
from risegrad.lab.running.run_selection import decided, selected
from risegrad.lab.running.run_trackers import check_trackers
from risegrad.pages.text import plural

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
    on_cpu: bool = False
    """Run on the CPU what an experiment file says to need a GPU."""

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


def plan_runs(place: str | Path, overrides: Sequence[str], only: Sequence[str]) -> RunPlan:
    """Read an experiment and choose among its runs."""
    experiment = load_experiment(place, overrides)
    grid = expand(experiment, workload.load().read_config)
    return RunPlan(experiment, choose(grid, only), len(grid))


def plan_selected(plan: RunPlan, options: RunOptions) -> tuple[list[Choice], RunPlan]:
    """What the runs that are done choose, and the runs on test data of it."""
    found = decided(placed(plan.cells, options.out), options.out)
    cells = selected(plan.experiment, found, workload.load().read_config)
    return found, replace(plan, cells=cells)


def do_runs(plan: RunPlan, options: RunOptions) -> tuple[Sequence[RunCell], Tally]:
    """Do the runs that are not done; the cells in their folders, and how they ended."""
    out = output_folder(options.out)
    cells, wanted = placed(plan.cells, out), plugins.ordered()
    rename_rows(cells, out)
    with display() as watcher:
        schedule = Schedule(
            cells,
            out,
            lambda cell: order_for(cell, out, options.track, options.processes, wanted),
            watcher,
        )
        schedule.sort(options.retry_failed)
        if schedule.queue:
            _start(schedule, plan, out, options)
    return cells, schedule.tally


def _start(schedule: Schedule, plan: RunPlan, out: Path, options: RunOptions) -> None:
    cells, work = list(schedule.queue), workload.load()
    found = _look(cells, plan, out, options)
    if missing := found.missing or fetch(cells, work):
        raise MissingNeeds(told(missing, len(cells)))
    if options.engine == "local" and found.places:
        schedule.watcher.say(f"{plural(len(cells), 'run')} to do on {' and '.join(found.places)}")
    engine = options.make_engine(plan.grid)
    try:
        schedule.run(engine)
    finally:
        engine.stop()


def _look(cells: Sequence[RunCell], plan: RunPlan, out: Path, options: RunOptions) -> Preflight:
    """What the runs need. Ray's machines need not be this one: nothing is known of their GPUs."""
    found = preflight(cells, workload.load(), out, options.division(plan.grid)[0])
    refused = plan.experiment.gpu and found.cpu and options.engine == "local"
    if refused and not options.on_cpu:
        return replace(found, missing=(*found.missing, NO_GPU))
    return found


def check(plan: RunPlan, options: RunOptions) -> tuple[str, str]:
    """What the runs that are not done need, without starting or downloading anything: where they
    compute and about how long it takes, and what is missing."""
    cells = [
        cell
        for cell in placed(plan.cells, options.out)
        if look(options.out / cell.folder, cell)[0] is not State.DONE
    ]
    if not cells:
        return f"all {len(plan.cells)} runs are done", ""
    found = _look(cells, plan, options.out, options)
    places = f" on {' and '.join(found.places)}" if found.places else ""
    text = f"{plural(len(plan.cells), 'run')}, {len(cells)} to do{places}"
    return f"{text}\n{_pace(cells, found)}", told(
        found.missing, len(cells)
    ) if found.missing else ""


def _pace(cells: Sequence[RunCell], found: Preflight) -> str:
    if set(found.missing) - {NO_GPU}:
        return "how long they take can be said when nothing is missing"
    try:
        seconds = seconds_of(cells, workload.load())
    except Exception as error:  # such as a device whose memory is too small
        return f"how long they take is not known: {' '.join(str(error).split())}"
    if seconds is None:
        return "how long they take is not known"
    return f"about {duration(seconds)} here, one run at a time, without start-up"
