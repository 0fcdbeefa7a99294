"""``rise show``: what ``rise run`` would do."""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from riselab.commands.arguments import add_experiment, load_plugins, overrides

if TYPE_CHECKING:
    from riselab.experiments.cells import RunCell
    from riselab.experiments.file import Choice, Experiment
    from riselab.running.workload import Workload

NAME = "show"
SUMMARY = "show the runs of an experiment, which are done, and how much work they are"
DESCRIPTION = """\
Shows the runs of an experiment without running anything: a line for each row and varied value, with
its seeds and how many of them are done, and how much work is left ('rise run EXPERIMENT --check'
says how long that takes here). Where the file says 'select', it also shows what was chosen so far,
and the runs on test data that follow. --json has everything: ids, folders and the full
configuration of each run."""
EXAMPLES: tuple[str, ...] = (
    "rise show digits",
    "rise show digits --set rule.q=8 --json",
    "rise show my/experiment.toml --out out/q8 --only RISE",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise show``."""
    add_experiment(parser)
    parser.add_argument("--json", action="store_true", help="everything about each run, as JSON")


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Read the experiment and return the job."""
    from riselab.experiments.cells import choose, expand
    from riselab.experiments.file import load_experiment
    from riselab.running import workload

    load_plugins(args)
    experiment = load_experiment(args.experiment, overrides(args))
    work = workload.load()
    cells = choose(expand(experiment, work.read_config), args.only)
    return lambda: execute(experiment, cells, work, args)


def execute(
    experiment: "Experiment", cells: "Sequence[RunCell]", work: "Workload", args: argparse.Namespace
) -> int:
    """Print the runs, their state and what they cost, and return the exit code."""
    from riselab.running.folder import placed
    from riselab.running.plan import decided, selected

    first = placed(cells, args.out)
    chosen = decided(first, args.out)
    cells = [*first, *placed(selected(experiment, chosen, work.read_config), args.out)]
    rows = {cell.order: cell for cell in cells}  # the seeds of a row cost the same
    works = {order: _estimate(cell, work) for order, cell in rows.items()}
    runs = [_run(cell, args.out) | {"estimate": works[cell.order]} for cell in cells]
    left = total(run["estimate"] for run in runs if run["state"] != "done")
    if args.json:
        head = _head(experiment) | {"chosen": [_chosen(one) for one in chosen]}
        print(json.dumps(head | {"runs": runs, "left": left}, indent=1))
        return 0
    from riselab.pages.text import visible, visible_lines
    from riselab.running.folder import columns

    print(visible(" - ".join(filter(None, [experiment.name, experiment.title]))))
    for text in filter(None, [experiment.question, experiment.description]):
        print(visible_lines(text))
    print(f"\n{columns([['', 'seeds', 'state'], *_lines(runs)], right=False)}\n")
    for why, labels in _reasons(runs).items():
        print(f"{visible('; '.join(labels))}: {visible(why)}\n")
    print(*_choices(experiment, chosen), sep="\n", end="\n" if experiment.select else "")
    print(f"{len(runs)} runs: {_states(runs)}")
    if left:
        print("left to do: " + ", ".join(f"{_count(n)} {name}" for name, n in left.items()))
    for problem in dict.fromkeys(one["problem"] for one in works.values() if "problem" in one):
        print(f"no estimate: {visible(problem)}")
    return 0


def _lines(runs: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """A line for each row: its seeds, and how many of its runs are in which state."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        rows.setdefault(run["label"], []).append(run)
    for label, found in rows.items():
        yield [label, ", ".join(str(run["seed"]) for run in found), _states(found)]


def _states(runs: Sequence[dict[str, Any]]) -> str:
    states = Counter(run["state"] for run in runs)
    return ", ".join(f"{count} {state}" for state, count in states.items())


def _head(experiment: "Experiment") -> dict[str, Any]:
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
    }


def _chosen(choice: "Choice") -> dict[str, Any]:
    return {"method": choice.method, "setting": choice.setting, "means": choice.means}


def _choices(experiment: "Experiment", chosen: "Sequence[Choice]") -> Iterator[str]:
    """What was chosen, by what, and that more is to come."""
    from riselab.experiments.file import in_words
    from riselab.pages.text import visible

    if experiment.select:
        said = "; ".join(visible(choice.sentence) for choice in chosen)
        yield f"chosen by {in_words(experiment.select)}: {said or 'nothing yet'}\n"


def _reasons(runs: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Why rows train otherwise than others, and which: each reason once."""
    found: dict[str, list[str]] = {}
    for label, why in {run["label"]: run["why"] for run in runs if run["why"]}.items():
        found.setdefault(why, []).append(label)
    return found


def _estimate(cell: "RunCell", work: "Workload") -> dict[str, Any]:
    """An estimate looks at the data, which may not be here: no reason to show nothing."""
    try:
        return dict(work.estimate(cell.run))
    except Exception as error:
        return {"problem": " ".join(str(error).split()) or type(error).__name__}


def _run(cell: "RunCell", out: Path) -> dict[str, Any]:
    from riselab.running import folder as run_lock
    from riselab.running.folder import State, look

    folder = out / cell.folder
    state, _ = look(folder, cell)
    running = state is not State.DONE and run_lock.taken(folder)
    return {
        "label": cell.row.label,
        "section": cell.row.section,
        "why": cell.row.why,
        "seed": cell.seed,
        "id": cell.id,
        "state": "running" if running else state.value,
        "folder": str(folder),
        "config": cell.config,
    }


def total(estimates: Any) -> dict[str, float]:
    """The sums of what can be added."""
    found: dict[str, float] = {}
    for estimate in estimates:
        for name, value in estimate.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[name] = found.get(name, 0) + value
    return found


def _count(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
