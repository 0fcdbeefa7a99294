"""``rise run``: the runs of an experiment, as far as they are not done."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from riselab.commands.arguments import (
    add_experiment,
    add_settings,
    load_plugins,
    overrides,
    settings_of,
)
from riselab.pages.text import visible, visible_lines
from riselab.running.plan import (
    MissingNeeds,
    RunOptions,
    RunPlan,
    check,
    do_runs,
    plan_runs,
    plan_selected,
)

if TYPE_CHECKING:
    from riselab.experiments.cells import RunCell
    from riselab.running.schedule import Tally

NAME = "run"
SUMMARY = "run an experiment: every row, every seed; continues where it stopped"
DESCRIPTION = """\
Runs what an experiment file describes, each row with each seed, in processes on this machine or on
Ray. A finished run is not repeated, an interrupted one continues from its last checkpoint, a failed
one does not stop the others. Several 'rise run' on the same folder share the work. Each run has a
folder DIR/EXPERIMENT/ROW-SEED-ID with its record.json, log.txt and checkpoints.
Before the first run it looks for the data, weights, packages and disk space that the whole
experiment needs, and lists everything that is missing; --check does only that, and says about how
long the runs would take here. Where the file says 'select', every point of a sweep runs on
validation data first, then the best of each method on test data.
Exit codes: 0 all done, 1 some runs failed, 2 a mistake in the arguments or the file, or something
is missing that the runs need, 130 stopped."""
EXAMPLES: tuple[str, ...] = (
    "rise run digits",
    "rise run digits --workers 2 --set rule.q=8 --out out/q8",
    "rise run my/experiment.toml --only RISE --seeds 0,1",
    "rise run table1-cifar100-inc5 --check",
    "rise run digits --engine ray --address auto",
    "rise run my/experiment.toml --plugin my_host.py --track tensorboard",
)

UNREADY = 2
"""The exit code where something that the runs need is missing."""
TRACEBACKS = 3
"""How many are shown in full; a mistake in the file is the same in every run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise run``."""
    add_experiment(parser)
    options = {"engine": "ENGINE", "workers": "N", "threads": "N", "processes": "N",
               "address": "HOST:PORT", "retry_failed": "", "on_cpu": ""}  # fmt: skip
    add_settings(parser, RunOptions, options)
    text = "start nothing: say what is missing, on which device runs happen, and about how long"
    parser.add_argument("--check", action="store_true", help=text)
    text = "also send the curves to a tracker ('rise list trackers'); may be repeated"
    parser.add_argument("--track", action="append", default=[], metavar="TRACKER", help=text)


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments, read the experiment, and return the job."""
    load_plugins(args)
    options = settings_of(RunOptions, args)
    chosen = plan_runs(args.experiment, overrides(args), args.only)
    return lambda: (check_only if args.check else execute)(chosen, options)


def check_only(chosen: RunPlan, options: RunOptions) -> int:
    """Say what the runs need and where they would run; the exit code says whether they can."""
    text, missing = check(chosen, options)
    print(text)
    if missing:
        print(f"rise {NAME}: error: {missing}", file=sys.stderr)
    return UNREADY if missing else 0


def execute(chosen: RunPlan, options: RunOptions) -> int:
    """Do the runs that are not done, then those that they choose; return the exit code."""
    try:
        code = do_and_tell(chosen, options)
        if chosen.decides:
            code = max(code, do_selected(chosen, options))
    except MissingNeeds as error:
        print(f"rise {NAME}: error: {error}", file=sys.stderr)
        return UNREADY
    except KeyboardInterrupt:
        print("stopping; the same command continues from here", file=sys.stderr)
        raise
    print(f"'rise report {options.out / chosen.experiment.name}' makes a page of them")
    return code


def do_selected(chosen: RunPlan, options: RunOptions) -> int:
    """The runs on test data of what the first ones chose; return the exit code."""
    from riselab.experiments.file import in_words

    found, following = plan_selected(chosen, options)
    print(f"\nchosen by {in_words(chosen.experiment.select)}:")
    print("\n".join(visible(choice.sentence) for choice in found) or "nothing yet")
    return do_and_tell(following, options) if following.cells else 0


def do_and_tell(chosen: RunPlan, options: RunOptions) -> int:
    """Do the runs that are not done, print how they ended, and return the exit code."""
    return conclude(*do_runs(chosen, options), options.out)


def conclude(cells: "Sequence[RunCell]", tally: "Tally", out: Path) -> int:
    """The table, what failed and why, and where things are."""
    print("", *_results(cells, out), "", sep="\n")
    done = tally.before + tally.done
    again = f", {tally.before} of them before" if tally.before else ""
    print(f"{done} of {tally.total} runs done{again}; records in {out / cells[0].experiment}")
    if not tally.failed:
        return 0
    _explain(tally, out)
    return 1


def _results(cells: "Sequence[RunCell]", out: Path) -> Iterator[str]:
    """Mean ± standard deviation over seeds, a line per row, as ``rise report`` has them."""
    from riselab.report.rows import gather
    from riselab.report.tables import results
    from riselab.running.folder import records_of

    for experiment in gather(records_of(cells, out))[0]:
        yield from results(experiment).plain()


def _explain(tally: "Tally", out: Path) -> None:
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
