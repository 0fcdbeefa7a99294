"""``rise run``: the runs of an experiment, as far as they are not done."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from risegrad.common.atomic_files import output_folder
from risegrad.common.optional_imports import absent, lack
from risegrad.lab.commands.lab_arguments import add_experiment, overrides

if TYPE_CHECKING:
    from risegrad.lab.experiments.experiment_file import Experiment
    from risegrad.lab.experiments.run_cells import RunCell
    from risegrad.lab.running.engine import Engine
    from risegrad.lab.running.run_schedule import Tally

NAME = "run"
SUMMARY = "run an experiment: every row, every seed; continues where it stopped"
DESCRIPTION = """\
Runs what an experiment file describes, each row with each seed, in processes on this machine or on
Ray. A finished run is not repeated, an interrupted one continues from its last checkpoint, a failed
one does not stop the others. Several 'rise run' on the same folder share the work. Each run has a
folder DIR/EXPERIMENT/ROW-SEED-ID with its record.json, log.txt and checkpoints.
Before the first run it checks that data, weights, packages and disk space for the whole experiment
are there, and lists everything that is missing. Where the file says 'select', every point of a
sweep runs on validation data first, and the best of each method then on test data.
Exit codes: 0 all done, 1 some failed, 2 a mistake in the arguments or the file, or something that
the runs need is missing, 130 stopped."""
EXAMPLES: tuple[str, ...] = (
    "rise run digits",
    "rise run digits --workers 2 --set rule.q=8 --out out/q8",
    "rise run my/experiment.toml --only RISE --seeds 0,1",
    "rise run digits --engine ray --address auto",
)

MOST_WORKERS = 8
UNREADY = 2
"""The exit code where something that the runs need is missing."""
TRACEBACKS = 3
"""How many are shown in full; a mistake in the file is the same in every run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise run``."""
    add_experiment(parser)
    engine = "where: processes on this machine, or Ray tasks (default %(default)s)"
    parser.add_argument("--engine", choices=["local", "ray"], default="local", help=engine)
    text = "runs at a time (default: one per GPU, or one per core up to 8)"
    parser.add_argument("--workers", type=int, metavar="N", help=text)
    text = "threads of each run (default: cores / workers); results may depend on it in last digits"
    parser.add_argument("--threads", type=int, metavar="N", help=text)
    text = "processes of each run, which share its batches (default 1)"
    parser.add_argument("--processes", type=int, default=1, metavar="N", help=text)
    text = "of a Ray cluster, e.g. auto; else RAY_ADDRESS, else one is started here"
    parser.add_argument("--address", metavar="HOST:PORT", help=text)
    text = "run again what failed before"
    parser.add_argument("--retry-failed", action="store_true", help=text)
    text = "also write TensorBoard files into the runs' folders"
    parser.add_argument("--tensorboard", action="store_true", help=text)


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments, read the experiment, and return the job."""
    from risegrad.lab.experiments.experiment_file import load_experiment
    from risegrad.lab.experiments.run_cells import choose, expand
    from risegrad.lab.running import workload

    for name in ("workers", "threads", "processes"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.tensorboard and absent("tensorboard"):
        raise ValueError(lack("tensorboard", "lab", "--tensorboard"))
    if args.engine == "ray" and absent("ray"):
        raise ValueError(lack("ray", "ray", "--engine ray"))
    experiment = load_experiment(args.experiment, overrides(args))
    grid = expand(experiment, workload.load(args.workload).read_config)
    cells = choose(grid, args.only)
    return lambda: execute(experiment, cells, len(grid), args)


def execute(
    experiment: "Experiment", cells: "Sequence[RunCell]", grid: int, args: argparse.Namespace
) -> int:
    """Do the runs that are not done, then those that they choose; return the exit code."""
    code = do_runs(cells, grid, args)
    if code != UNREADY and any(cell.row.decides for cell in cells):
        code = max(code, do_chosen(experiment, cells, grid, args))
    if code != UNREADY:
        print(f"'rise report {args.out / experiment.name}' makes a page of them")
    return code


def do_chosen(
    experiment: "Experiment", cells: "Sequence[RunCell]", grid: int, args: argparse.Namespace
) -> int:
    """The runs on test data of what the first ones chose; return the exit code."""
    from risegrad.lab.experiments.selection import in_words
    from risegrad.lab.running import workload
    from risegrad.lab.running.run_folder import placed
    from risegrad.lab.running.run_selection import decided, selected
    from risegrad.pages.page_text import visible

    found = decided(placed(cells, args.out), args.out)
    print(f"\nchosen by {in_words(experiment.select)}:")
    print("\n".join(visible(choice.sentence) for choice in found) or "nothing yet")
    chosen = selected(experiment, found, workload.load(args.workload).read_config)
    return do_runs(chosen, grid, args) if chosen else 0


def do_runs(cells: "Sequence[RunCell]", grid: int, args: argparse.Namespace) -> int:
    """Do the runs that are not done, print how they ended, and return the exit code."""
    from risegrad.lab.running import workload
    from risegrad.lab.running.preflight import preflight
    from risegrad.lab.running.run_display import display
    from risegrad.lab.running.run_execution import order_for
    from risegrad.lab.running.run_folder import placed, rename_rows
    from risegrad.lab.running.run_schedule import Schedule

    out = output_folder(args.out)
    cells = placed(cells, out)
    rename_rows(cells, out)
    with display() as watcher:
        schedule = Schedule(
            cells,
            out,
            lambda cell: order_for(cell, out, args.workload, args.tensorboard, args.processes),
            watcher,
        )
        schedule.sort(args.retry_failed)
        if schedule.queue:
            work, (workers, _) = workload.load(args.workload), division(args, grid)
            if lacks := preflight(list(schedule.queue), work, out, workers):
                print(f"rise {NAME}: error: {lacks}", file=sys.stderr)
                return UNREADY
            engine = make_engine(args, grid)
            try:
                schedule.run(engine)
            except KeyboardInterrupt:
                print("stopping; the same command goes on from here", file=sys.stderr)
                raise
            finally:
                engine.stop()
    return conclude(cells, schedule.tally, out)


def division(args: argparse.Namespace, grid: int) -> tuple[int, int]:
    """Runs at a time, and threads of each process.

    The number of threads follows from the whole grid, not from what is left of it: it changes the
    order of sums, and a run that goes on tomorrow should come to the same digits.
    """
    from risegrad.common.cores import cores
    from risegrad.lab.running.local_engine import devices

    here = cores()
    slots = max(1, (len(devices()) or min(here, MOST_WORKERS)) // args.processes)
    workers = args.workers or min(slots, grid)
    return workers, args.threads or max(1, here // (workers * args.processes))


def make_engine(args: argparse.Namespace, grid: int) -> "Engine":
    """The engine that the arguments ask for."""
    from risegrad.lab.running.local_engine import LocalEngine
    from risegrad.lab.running.ray_engine import RayEngine

    workers, threads = division(args, grid)
    if args.engine == "local":
        return LocalEngine(workers, threads, args.processes)
    elsewhere = args.address or os.environ.get("RAY_ADDRESS")
    if elsewhere:
        return RayEngine(args.workers, args.threads or 1, elsewhere)
    return RayEngine(workers, threads)


def conclude(cells: "Sequence[RunCell]", tally: "Tally", out: Path) -> int:
    """The table, what failed and why, and where things are."""
    from risegrad.lab.running.run_outcome import results

    print(f"\n{results(cells, out)}\n")
    done = tally.before + tally.done
    again = f", {tally.before} of them before" if tally.before else ""
    print(f"{done} of {tally.total} runs done{again}; records in {out / cells[0].experiment}")
    if not tally.failed:
        return 0
    _explain(tally, out)
    return 1


def _explain(tally: "Tally", out: Path) -> None:
    from risegrad.pages.page_text import visible_lines

    shown: set[str] = set()
    sys.stdout.flush()
    print(f"\n{len(tally.failed)} failed:", file=sys.stderr)
    for cell, reason in tally.failed.values():
        print(f"\n{cell.title}: {out / cell.folder / 'error.txt'}", file=sys.stderr)
        lines = visible_lines(reason).splitlines() or ["no reason is known; see log.txt"]
        if reason in shown or len(shown) >= TRACEBACKS:
            lines = lines[-1:]
        shown.add(reason)
        print(*(f"  {line}" for line in lines), sep="\n", file=sys.stderr)
    print("\n--retry-failed runs them again.", file=sys.stderr)
