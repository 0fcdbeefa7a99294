"""From an experiment to finished runs: what ``rise run`` and ``lab.run`` share."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from risegrad.common.checks import check_choice
from risegrad.common.environment import cores
from risegrad.common.imports import absent, lack
from riselab import plugins
from riselab.common.folders import output_folder
from riselab.experiments.cells import Chosen, ReadConfig, RunCell, choose, expand
from riselab.experiments.file import Choice, Experiment, choices, load_experiment
from riselab.pages.text import plural
from riselab.records.fields import TableRow
from riselab.running import local as local_engine
from riselab.running.folder import State, look, placed, records_of, rename_rows
from riselab.running.progress import display, duration
from riselab.running.ray import RayEngine
from riselab.running.schedule import Engine, Schedule, Tally
from riselab.running.trackers import check_trackers
from riselab.running.worker import Workload, order_for, workload


def decided(cells: Sequence[RunCell], out: Path) -> list[Choice]:
    """The choices of the methods whose deciding runs are all done."""
    deciding = [cell for cell in cells if cell.row.decides]
    done = records_of(deciding, out)  # where some are not run, or failed, the method waits
    wanted = Counter((cell.row.section, cell.row.method) for cell in deciding)
    found = Counter((record.row.section, record.row.method) for record in done)
    return [c for c in choices(done) if found[of := (c.section, c.method)] == wanted[of]]


def selected(
    experiment: Experiment, found: Sequence[Choice], read_config: ReadConfig
) -> list[RunCell]:
    """The runs on test data of what was chosen."""
    cells = expand(experiment, read_config, chooser(found))
    return [cell for cell in cells if cell.row.chosen_by]


def chooser(found: Sequence[Choice]) -> Chosen:
    """Says of a row whether it is the chosen point of its method."""
    settings = {(choice.section, choice.method): choice.setting for choice in found}

    def chosen(row: TableRow) -> bool:
        return settings.get((row.section, row.method)) == row.swept

    return chosen


NAMED = 3
"""How many rows are named beside what they lack."""

NO_GPU = (
    "these runs need a GPU and there is none here: --on-cpu runs them on the CPU all the same, and "
    "--check says about how long that takes"
)


@dataclass(frozen=True)
class Preflight:
    """What was found out about a grid without running it."""

    missing: tuple[str, ...]
    """a sentence for everything that is needed and not there"""
    places: tuple[str, ...]
    """the devices that the runs use, in words"""
    cpu: bool
    """whether one of them uses the CPU"""


def preflight(cells: Sequence[RunCell], work: Workload, out: Path, workers: int) -> Preflight:
    """Look at what every row needs; ``workers`` runs happen at a time."""
    asked = _rows(cells)
    known: dict[Any, Any] = {}
    found = {order: _needs(cell, work, known) for order, cell in asked.items()}
    rows: dict[str, list[str]] = {}
    for order, needs in found.items():
        for missing in needs.get("missing", ()):
            rows.setdefault(missing, []).append(asked[order].row.label)
    lines = [f"{missing}{_who(labels, len(asked))}" for missing, labels in rows.items()]
    most = max((int(needs.get("bytes", 0)) for needs in found.values()), default=0)
    lines += _room(out, most * min(workers, len(cells)))
    devices = dict(needs["device"] for needs in found.values() if "device" in needs)
    return Preflight(tuple(lines), tuple(devices.values()), "cpu" in devices)


def missing_message(missing: Sequence[str], runs: int) -> str:
    """What is missing as one message."""
    head = f"{runs} runs cannot start, something is missing"
    return "\n".join([f"{head}:", *(f"- {line}" for line in missing)])


def fetch(cells: Sequence[RunCell], work: Workload) -> list[str]:
    """Download what may be, once and before workers would do it at once; why it failed."""
    load: Callable[[Any], None] | None = getattr(work, "fetch", None)
    if load is None:
        return []
    problems = []
    for cell in {_key(cell.settings, "stream"): cell for cell in cells}.values():
        try:
            load(cell.run)
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            problems.append(" ".join(str(error).split()))
    return problems


def seconds_of(cells: Sequence[RunCell], work: Workload) -> float | None:
    """About how long these runs take here, one at a time; None where the workload cannot say.

    Of the rows with one model the largest is timed; the others go by their passes through it.
    """
    clock: Callable[[Any], float] | None = getattr(work, "seconds", None)
    if clock is None:
        return None
    passes: dict[str, dict[int, float]] = {}
    for order, cell in _rows(cells).items():
        counts = work.estimate(cell.run)
        rows = passes.setdefault(_key(cell.settings, "model"), {})
        rows[order] = max(counts.get("forward", 0) + 2 * counts.get("backward", 0), 1)
    total = 0.0
    for rows in passes.values():
        largest = max(rows, key=lambda order: rows[order])
        timed = next(cell for cell in cells if cell.order == largest)
        pace = clock(timed.run) / rows[largest]
        total += pace * sum(rows.get(cell.order, 0) for cell in cells)
    return total


def _rows(cells: Sequence[RunCell]) -> dict[int, RunCell]:
    """One cell for each row: its seeds need the same."""
    return {cell.order: cell for cell in cells}


def _key(settings: Mapping[str, Any], section: str) -> str:
    """The same for runs that agree in a section."""
    return json.dumps(settings.get(section), sort_keys=True, default=str)


def _needs(cell: RunCell, work: Workload, known: dict[Any, Any]) -> Mapping[str, Any]:
    ask = getattr(work, "needs", None)  # a workload need not know
    found: Mapping[str, Any] = ask(cell.run, known) if ask else {}
    return found


def _who(labels: Sequence[str], rows: int) -> str:
    if len(labels) == rows:
        return ""
    shown = ", ".join(json.dumps(label, ensure_ascii=False) for label in labels[:NAMED])
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    return f" (for {shown}{more})"


def _room(out: Path, wanted: int) -> list[str]:
    there = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    if free >= wanted:
        return []
    return [
        f"{_size(free)} are free in {out}, and checkpoints may need {_size(wanted)}: make room, or "
        "give another folder with --out"
    ]


def _size(count: int) -> str:
    """
    >>> _size(4_200_000_000), _size(1_000_000)
    ('4.2 GB', '1.0 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


MOST_WORKERS = 8


class MissingNeeds(RuntimeError):
    """Something that the runs need is not there, so none was started."""


@dataclass(frozen=True)
class RunOptions:
    """How runs are done; nothing here is part of what they are."""

    out: Path
    engine: str = "local"
    """Where: local (processes on this machine) or ray (Ray tasks)."""
    workers: int | None = None
    """Runs at a time (default: one per GPU, or one per core up to 8)."""
    threads: int | None = None
    """Threads of each run (default: cores / workers); they may change last digits."""
    processes: int = 1
    """Processes of each run, which share its batches."""
    address: str | None = None
    """Of a Ray cluster, e.g. auto; else RAY_ADDRESS, else one is started here."""
    retry_failed: bool = False
    """Run again what has failed before."""
    track: tuple[str, ...] = ()
    """Trackers that also get the curves."""
    on_cpu: bool = False
    """Use the CPU although the experiment file asks for a GPU."""

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
    grid = expand(experiment, workload().read_config)
    return RunPlan(experiment, choose(grid, only, experiment.default), len(grid))


def plan_selected(plan: RunPlan, options: RunOptions) -> tuple[list[Choice], RunPlan]:
    """What the runs that are done choose, and the runs on test data of it."""
    found = decided(placed(plan.cells, options.out), options.out)
    cells = selected(plan.experiment, found, workload().read_config)
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
    cells, work = list(schedule.queue), workload()
    found = _look(cells, plan, out, options)
    if missing := found.missing or fetch(cells, work):
        raise MissingNeeds(missing_message(missing, len(cells)))
    if options.engine == "local" and found.places:
        schedule.watcher.say(f"{plural(len(cells), 'run')} to do on {' and '.join(found.places)}")
    engine = options.make_engine(plan.grid)
    try:
        schedule.run(engine)
    finally:
        engine.stop()


def _look(cells: Sequence[RunCell], plan: RunPlan, out: Path, options: RunOptions) -> Preflight:
    """What the runs need. Ray's machines need not be this one: nothing is known of their GPUs."""
    found = preflight(cells, workload(), out, options.division(plan.grid)[0])
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
    return f"{text}\n{_pace(cells, found)}", missing_message(
        found.missing, len(cells)
    ) if found.missing else ""


def _pace(cells: Sequence[RunCell], found: Preflight) -> str:
    if set(found.missing) - {NO_GPU}:
        return "the time can be estimated when nothing is missing"
    try:
        seconds = seconds_of(cells, workload())
    except Exception as error:  # such as a device whose memory is too small
        return f"how long they take is not known: {' '.join(str(error).split())}"
    if seconds is None:
        return "how long they take is not known"
    return f"about {duration(seconds)} here, one run at a time, without start-up"
