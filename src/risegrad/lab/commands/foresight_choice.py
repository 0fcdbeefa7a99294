"""Which run of an experiment is looked at, at which point, and which rows are compared there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from risegrad.lab.commands.lab_arguments import add_experiment, overrides

if TYPE_CHECKING:
    from risegrad.continual.session import Report
    from risegrad.foresight.foresight_settings import DiagnosisSettings, ValidationSettings
    from risegrad.foresight.reached_point import ReachedPoint
    from risegrad.foresight.row_steps import ExperimentRow
    from risegrad.lab.experiments.run_cells import RunCell


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The experiment and its options, the session, and how quiet."""
    add_experiment(parser)
    text = "the session whose first steps are predicted, from 2 (default: where the run is)"
    parser.add_argument("--task", type=int, default=None, metavar="N", help=text)
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")


@dataclass(frozen=True)
class ForesightChoice:
    """One run, the rows that its point serves, and how to measure."""

    cell: RunCell
    cells: tuple[RunCell, ...]
    """one of each method, with the seed of the run and its host, model and stream"""
    diagnosis: DiagnosisSettings
    validation: ValidationSettings
    out: Path
    runs: int = 1
    """how many there were to choose from"""
    left_out: tuple[str, ...] = ()
    """methods that could not go on from this run's point, each with the reason"""

    @property
    def settings(self) -> Any:
        """Of the run."""
        from risegrad.continual.runs import read_config

        return read_config(self.cell.settings)

    @property
    def rows(self) -> list[ExperimentRow]:
        """The rows, by their labels with their rates."""
        from risegrad.continual.runs import read_config
        from risegrad.foresight.row_steps import ExperimentRow

        return [ExperimentRow(with_rate(cell), read_config(cell.settings)) for cell in self.cells]

    @property
    def choice(self) -> str:
        """Which of the runs it is, and how to get another, in words."""
        if self.runs == 1:
            return "the only run that was chosen"
        return f"the first of {self.runs} runs that --only leaves; a row's label names another"

    def folder(self, kind: str) -> Path:
        """Where results go: beside the runs of the experiment."""
        from risegrad.lab.experiments.run_cells import SHORT, slug

        name = f"{slug(self.cell.row.label)}-s{self.cell.seed}-{self.cell.id[:SHORT]}"
        task = f"-task{self.diagnosis.task}" if self.diagnosis.task else ""
        return self.out / self.cell.experiment / kind / f"{name}{task}"

    def reach(self, folder: Path, report: Report) -> ReachedPoint:
        """The point itself; what of the stream must be learned first is."""
        from risegrad.foresight.reached_point import ReachedPoint
        from risegrad.lab.running.run_folder import placed

        (here,) = placed([self.cell], self.out)
        run, task = self.out / here.folder, self.diagnosis.task
        return ReachedPoint.reach(self.settings, task, run, folder, report)

    def subject(self, point: ReachedPoint) -> str:
        """In words."""
        task = point.host.kit.stream[point.task]
        inside = f"after {point.epoch} epochs of session"
        place = "before session" if point.within is None else inside
        return (
            f"{self.cell.experiment}, {with_rate(self.cell)}, seed {self.cell.seed}: {place} "
            f"{point.task + 1} of {point.tasks} ({task.name})"
        )


def chosen(args: argparse.Namespace) -> ForesightChoice:
    """Read the experiment and check everything that can be wrong before any work."""
    from risegrad.continual.runs import read_config
    from risegrad.curvature.estimates.product_budget import ProductBudget
    from risegrad.foresight.foresight_settings import read_sections
    from risegrad.lab.experiments.experiment_file import load_experiment
    from risegrad.lab.experiments.run_cells import choose, expand

    experiment = load_experiment(args.experiment, overrides(args))
    sections = {"diagnosis": experiment.diagnosis, "validation": experiment.validation}
    diagnosis, validation = read_sections(sections)
    ProductBudget.of(diagnosis.budget)
    if args.task is not None:
        if args.task < 2:
            raise ValueError(f"--task must be 2 or more, got {args.task}")
        diagnosis = replace(diagnosis, task=args.task)
    cells = expand(experiment, read_config)
    runs = choose(cells, args.only)
    alike, left_out = _alike(cells, runs[0])
    return ForesightChoice(
        runs[0], alike, diagnosis, validation, args.out, len(runs), left_out
    )  # fmt: skip


def _alike(cells: Sequence[RunCell], cell: RunCell) -> tuple[tuple[RunCell, ...], tuple[str, ...]]:
    """One run of every method that could go on from this run's point, and who could not and why.

    Of a sweep, the middle; of the run's own method, the run itself.
    """
    from risegrad.continual.runs import read_config
    from risegrad.foresight.reached_point import hindrance

    own = read_config(cell.settings)
    methods: dict[str, list[RunCell]] = {}
    reasons: dict[str, str] = {}
    for other in cells:
        if other.seed == cell.seed:
            reason = hindrance(read_config(other.settings), own)
            if reason:
                reasons[_method(other)] = reason
            else:
                methods.setdefault(_method(other), []).append(other)
    methods[_method(cell)] = [cell]
    left_out = tuple(f"{name} ({why})" for name, why in reasons.items() if name not in methods)
    return tuple(found[len(found) // 2] for found in methods.values()), left_out


def with_rate(cell: RunCell) -> str:
    """The label; the rates of what trains are added where it does not tell them."""
    if "lr=" in cell.row.label:
        return cell.row.label
    budgets = [cell.settings.get(name) or {} for name in ("adapter", "head")]
    rates = dict.fromkeys(f"{budget['lr']:g}" for budget in budgets if budget.get("epochs"))
    return f"{cell.row.label} (lr={'/'.join(rates)})" if rates else cell.row.label


def _method(cell: RunCell) -> str:
    return cell.row.method or cell.row.label


def told(tell: Any) -> Report:
    """Progress of learning, for a line that is shown."""
    known: dict[str, Any] = {}

    def report(news: dict[str, Any]) -> None:
        known.update(news)
        place = "/".join(str(known[k]) for k in ("task", "tasks") if k in known)
        epoch = f", epoch {known['epoch']}/{known['epochs']}" if "epochs" in known else ""
        tell("learning the earlier tasks", f"task {place}{epoch}")

    return report
