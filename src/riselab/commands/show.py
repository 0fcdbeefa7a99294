"""``rise show``: what ``rise run`` would do."""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from risegrad.common.text_columns import text_columns
from riselab.commands.arguments import add_experiment, load_plugins, overrides
from riselab.experiments.cells import RunCell, choose, expand
from riselab.experiments.file import Choice, Experiment, in_words, load_experiment
from riselab.pages.text import visible, visible_lines
from riselab.running.folder import State, look, placed, taken
from riselab.running.plan import decided, selected
from riselab.running.worker import Workload, workload

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

    load_plugins(args)
    experiment = load_experiment(args.experiment, overrides(args))
    work = workload()
    cells = choose(expand(experiment, work.read_config), args.only, experiment.default)
    return lambda: execute(experiment, cells, work, args)


def execute(
    experiment: Experiment, cells: Sequence[RunCell], work: Workload, args: argparse.Namespace
) -> int:
    """Print the runs, their state and what they cost, and return the exit code."""

    first = placed(cells, args.out)
    chosen = decided(first, args.out)
    cells = [*first, *placed(selected(experiment, chosen, work.read_config), args.out)]
    rows = {cell.order: cell for cell in cells}  # the seeds of a row cost the same
    works = {order: _estimate(cell, work) for order, cell in rows.items()}
    runs = [_run(cell, args.out) | {"estimate": works[cell.order]} for cell in cells]
    left = total(run["estimate"] for run in runs if run["state"] != "done")
    if args.json:
        content = {
            "experiment": experiment.name,
            "title": experiment.title,
            "question": experiment.question,
            "chosen": [
                {"method": one.method, "setting": one.setting, "means": one.means} for one in chosen
            ],
            "runs": runs,
            "left": left,
        }
        print(json.dumps(content, indent=1))
        return 0
    print("\n".join(_text(experiment, chosen, runs)))
    if left:
        print("left to do: " + ", ".join(f"{_count(n)} {name}" for name, n in left.items()))
    return 0


def _text(
    experiment: Experiment, chosen: Sequence[Choice], runs: Sequence[dict[str, Any]]
) -> Iterator[str]:
    """The experiment, a line for each row, why rows differ, what was chosen, and the states."""

    yield visible(" - ".join(filter(None, [experiment.name, experiment.title])))
    yield from map(visible_lines, filter(None, [experiment.question, experiment.description]))
    rows: dict[str, list[dict[str, Any]]] = {}
    whys: dict[str, dict[str, None]] = {}
    for run in runs:
        rows.setdefault(run["label"], []).append(run)
        whys.setdefault(run["why"], {})[run["label"]] = None
    lines = [
        [label, ", ".join(str(run["seed"]) for run in found), _states(found)]
        for label, found in rows.items()
    ]
    table = [["", "seeds", "state"], *lines]
    yield from ("", *text_columns([[*map(visible, line)] for line in table], right=False), "")
    for why, labels in whys.items():
        if why:
            yield f"{visible('; '.join(labels))}: {visible(why)}\n"
    if experiment.select:
        said = "; ".join(visible(choice.sentence) for choice in chosen)
        yield f"chosen by {in_words(experiment.select)}: {said or 'nothing yet'}\n"
    yield f"{len(runs)} runs: {_states(runs)}"
    estimates = (run["estimate"] for run in runs)
    for problem in dict.fromkeys(one["problem"] for one in estimates if "problem" in one):
        yield f"no estimate: {visible(problem)}"


def _states(runs: Sequence[dict[str, Any]]) -> str:
    states = Counter(run["state"] for run in runs)
    return ", ".join(f"{count} {state}" for state, count in states.items())


def _estimate(cell: RunCell, work: Workload) -> dict[str, Any]:
    """An estimate looks at the data, which may not be here: no reason to show nothing."""
    try:
        return dict(work.estimate(cell.run))
    except Exception as error:
        return {"problem": " ".join(str(error).split()) or type(error).__name__}


def _run(cell: RunCell, out: Path) -> dict[str, Any]:

    folder = out / cell.folder
    state, _ = look(folder, cell)
    running = state is not State.DONE and taken(folder)
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


def total(estimates: Iterable[dict[str, Any]]) -> Counter[str]:
    """The sums of what can be added."""
    found: Counter[str] = Counter()
    for estimate in estimates:
        found.update({name: n for name, n in estimate.items() if type(n) in (int, float)})
    return found


def _count(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
