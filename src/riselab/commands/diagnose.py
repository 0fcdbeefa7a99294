"""``rise diagnose``: a run at a point of its stream, and what every rule's next steps would do.

Also how ``rise local`` chooses its run and reaches the point.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from risegrad.common.imports import need
from riselab.commands.arguments import add_experiment, load_plugins, overrides

if TYPE_CHECKING:
    from riselab.experiments.cells import RunCell
    from riselab.foresight.reached_point import ReachedPoint
    from riselab.foresight.settings import DiagnosisSettings, ValidationSettings

NAME = "diagnose"
SUMMARY = "predict what each rule's next steps would do to what a run has learned so far"
DESCRIPTION = """\
Takes one run of an experiment (the first that --only selects) to the point before a session: to its
checkpoint in --out, or by learning the earlier tasks now. There it measures the curvature of the
earlier tasks' losses and predicts how the next step would change them by each rule: plain, RISE and
its controls, informed. It prints a decision with its reasons and writes diagnosis.json below --out.
For your own model use risegrad.diagnose.
Needs curvlinops and tqdm: pip install "risegrad[curvature,lab]"."""
EXAMPLES: tuple[str, ...] = (
    "rise diagnose turned-digits --only RISE",
    "rise diagnose turned-digits --task 3 --set diagnosis.examples=128",
    "rise diagnose my/experiment.toml --only FO --out out/runs",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise diagnose``."""
    add_choice(parser)


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments and return the job."""
    choice = chosen(args)
    return lambda: measure(choice, "diagnosis", args.quiet, partial(diagnosed, choice))


def diagnosed(choice: SessionChoice, point: ReachedPoint, tell: Tell) -> Measured:
    """The diagnosis at the point."""
    from riselab.foresight.session import diagnose_session

    return diagnose_session(
        point, choice.shaped_like, choice.diagnosis, choice.subject(point),
        lambda done, most: tell("curvature products", f"{done}/{most}"),
    )  # fmt: skip


Tell = Callable[[str, str], None]
"""Called with what is being done, and how far it is."""


class Measured(Protocol):
    """What was measured: it can be printed, too."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The experiment and its options, the session, and how quiet."""
    add_experiment(parser)
    text = "the session whose first steps are predicted, 2 or later (default: the run's next)"
    parser.add_argument("--task", type=int, default=None, metavar="N", help=text)
    parser.add_argument("--quiet", action="store_true", help="print neither progress nor summary")


@dataclass(frozen=True)
class SessionChoice:
    """One run, and how to measure at its point."""

    cell: RunCell
    shaped_like: Any
    """settings of the run, or of the first row that shapes where the run's own rule does not: their
    blocks are looked at"""
    diagnosis: DiagnosisSettings
    validation: ValidationSettings
    out: Path
    runs: int = 1
    """how many there were to choose from"""

    @property
    def choice(self) -> str:
        """Which of the runs it is, and how to get another, in words."""
        if self.runs == 1:
            return "the only run that was chosen"
        return f"the first of {self.runs} runs that --only leaves; a row's label names another"

    def folder(self, kind: str) -> Path:
        """Where results go: beside the runs of the experiment."""
        from riselab.experiments.cells import SHORT, slug

        name = f"{slug(self.cell.row.label)}-s{self.cell.seed}-{self.cell.id[:SHORT]}"
        task = f"-task{self.diagnosis.task}" if self.diagnosis.task else ""
        return self.out / self.cell.experiment / kind / f"{name}{task}"

    def reach(self, folder: Path, tell: Tell) -> ReachedPoint:
        """The point itself; what of the stream must be learned first is."""
        from riselab.foresight.reached_point import ReachedPoint
        from riselab.running.folder import placed

        (here,) = placed([self.cell], self.out)
        settings, task = self.cell.run, self.diagnosis.task
        known: dict[str, Any] = {}

        def report(news: dict[str, Any]) -> None:
            known.update(news)
            place = "/".join(str(known[k]) for k in ("task", "tasks") if k in known)
            epoch = f", epoch {known['epoch']}/{known['epochs']}" if "epochs" in known else ""
            tell("learning the earlier tasks", f"task {place}{epoch}")

        return ReachedPoint.reach(settings, task, self.out / here.folder, folder, report)

    def subject(self, point: ReachedPoint) -> str:
        """In words."""
        task = point.host.kit.stream[point.task]
        return (
            f"{self.cell.experiment}, {with_rate(self.cell)}, seed {self.cell.seed}: before "
            f"session {point.task + 1} of {point.tasks} ({task.name})"
        )


def chosen(args: argparse.Namespace) -> SessionChoice:
    """Read the experiment and check everything that can be wrong before any work."""
    from risegrad.curvature.estimates import ProductBudget
    from riselab.common.settings import read
    from riselab.continual.runs import read_config
    from riselab.experiments.cells import choose, expand
    from riselab.experiments.file import load_experiment
    from riselab.foresight.settings import read_sections

    load_plugins(args)
    experiment = load_experiment(args.experiment, overrides(args))
    sections = {"diagnosis": experiment.diagnosis, "validation": experiment.validation}
    diagnosis, validation = read_sections(sections)
    read(ProductBudget, diagnosis.budget, "budget")
    if args.task is not None:
        if args.task < 2:
            raise ValueError(f"--task must be 2 or more, got {args.task}")
        diagnosis = replace(diagnosis, task=args.task)
    cells = expand(experiment, read_config)
    runs = choose(cells, args.only)
    shaping = (c.run for c in (runs[0], *cells) if c.run.rule.name not in ("", "fo", "zo"))
    shaped_like = next(shaping, runs[0].run)
    return SessionChoice(runs[0], shaped_like, diagnosis, validation, args.out, len(runs))


def measure(
    choice: SessionChoice, kind: str, quiet: bool, of: Callable[[ReachedPoint, Tell], Measured]
) -> int:
    """Reach the point, measure there, write the result, and say so."""
    from risegrad.common.files import write_json
    from riselab.common.folders import output_folder
    from riselab.records.record import provenance

    output_folder(choice.out)  # fails now; its folder comes when there is a point
    folder = choice.folder(kind)
    with telling(quiet) as tell:
        point = choice.reach(folder, tell)
        output_folder(folder)
        found = of(point, tell)
    path = folder / f"{kind}.json"
    write_json(path, found.to_dict() | {"environment": provenance()})
    if not quiet:
        print(f"{choice.subject(point)}\n{choice.choice}\n\n{found}\n\nwrote {path}")
    return 0


def with_rate(cell: RunCell) -> str:
    """The label; the rates of what trains are added where it does not tell them."""
    if "lr=" in cell.row.label:
        return cell.row.label
    budgets = [cell.settings.get(name) or {} for name in ("adapter", "head")]
    rates = dict.fromkeys(f"{budget['lr']:g}" for budget in budgets if budget.get("epochs"))
    return f"{cell.row.label} (lr={'/'.join(rates)})" if rates else cell.row.label


@contextmanager
def telling(quiet: bool) -> Iterator[Tell]:
    """A line that says what is being done and how far it is; in a log, a line for each stage."""
    tqdm = need("tqdm", "lab")
    log = not sys.stderr.isatty()
    with tqdm.tqdm(disable=quiet or log, file=sys.stderr, bar_format="{elapsed} {desc}") as bar:
        stages: list[str] = []

        def tell(stage: str, detail: str) -> None:
            bar.set_description_str(f"{stage} {detail}".strip())
            if log and not quiet and stage not in stages:
                print(stage, file=sys.stderr, flush=True)
            stages.append(stage)

        yield tell
