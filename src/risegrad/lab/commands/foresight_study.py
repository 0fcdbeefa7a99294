"""The runs of an experiment, followed one by one; what is done already is read from its file."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from risegrad.common.atomic_files import write_json
from risegrad.common.settings import as_plain, digest, read
from risegrad.continual.runs import read_config
from risegrad.core.shapers import Rise
from risegrad.curvature.estimates.product_budget import ProductBudget
from risegrad.foresight.block_benefits import block_benefits
from risegrad.foresight.followed_run import FollowedSession, follow, start
from risegrad.foresight.foresight_agreement import BlockBenefit
from risegrad.foresight.foresight_result import ForesightResult
from risegrad.foresight.foresight_settings import (
    DiagnosisSettings,
    ValidationSettings,
    read_sections,
)
from risegrad.foresight.reached_point import ReachedPoint, comparable
from risegrad.foresight.row_steps import ExperimentRow
from risegrad.foresight.session_diagnosis import problem_at
from risegrad.foresight.session_problem import SessionProblem
from risegrad.lab.commands.lab_arguments import overrides
from risegrad.lab.experiments.experiment_file import Experiment, load_experiment
from risegrad.lab.experiments.run_cells import SHORT, RunCell, choose, expand
from risegrad.lab.records.run_environment import provenance

Tell = Callable[[str, str], None]
PARTS = "parts"


@dataclass(frozen=True)
class RunPart:
    """What following one run gave."""

    sessions: tuple[FollowedSession, ...]


@dataclass(frozen=True)
class BlockPart:
    """What shaping single blocks gave."""

    blocks: tuple[BlockBenefit, ...]


@dataclass
class Study:
    """All runs, and where their parts are kept."""

    experiment: Experiment
    cells: Sequence[RunCell]
    diagnosis: DiagnosisSettings
    validation: ValidationSettings
    out: Path
    _start: tuple[Any, ReachedPoint] | None = None

    @property
    def folder(self) -> Path:
        """Beside the runs of the experiment."""
        return self.out / self.experiment.name / "foresight"

    def run(self, tell: Tell) -> ForesightResult:
        """Follow every run, then look at single blocks."""
        began, environment = time.perf_counter(), provenance()
        sessions: list[FollowedSession] = []
        for number, cell in enumerate(self.cells, 1):
            tell("following runs", f"{number}/{len(self.cells)}: {cell.title}")
            sessions += self._followed(cell)
        tell("shaping single blocks", "")
        blocks = self._blocks()
        settings = {"diagnosis": as_plain(self.diagnosis), "validation": as_plain(self.validation)}
        seconds = round(time.perf_counter() - began, 1)
        return ForesightResult(
            self.experiment.name, self.experiment.title, settings, tuple(sessions), tuple(blocks),
            seconds, environment,
        )  # fmt: skip

    def _followed(self, cell: RunCell) -> tuple[FollowedSession, ...]:
        file = self._part(cell.id)
        if file.exists():
            return read(RunPart, json.loads(file.read_text(encoding="utf-8"))).sessions
        row = ExperimentRow(cell.row.label, read_config(cell.settings))
        method = cell.row.method or cell.row.label
        horizons = self.validation.horizons
        found = follow(self._beginning(row.settings), row, method, self.diagnosis, horizons)
        part = RunPart(tuple(found))
        write_json(file, asdict(part))
        return part.sessions

    def _blocks(self) -> tuple[BlockBenefit, ...]:
        """At the second session of the first run."""
        file = self._part("blocks")
        if file.exists():
            return read(BlockPart, json.loads(file.read_text(encoding="utf-8"))).blocks
        cell = self.cells[0]
        settings = read_config(cell.settings)
        rows = [ExperimentRow(c.row.label, read_config(c.settings)) for c in self.cells]
        rows = [row for row in rows if comparable(row.settings, settings)]
        point = ReachedPoint.reach(settings, 2, None, self.folder / PARTS / cell.id[:SHORT])
        if self.validation.whole_tensors:
            problem = SessionProblem.of(point, Rise(q=settings.rule.q), self.diagnosis)
        else:
            problem = problem_at(point, rows, self.diagnosis)
        part = BlockPart(tuple(block_benefits(problem, self.diagnosis, self.validation)))
        write_json(file, asdict(part))
        return part.blocks

    def _beginning(self, settings: Any) -> ReachedPoint:
        """Shared by the runs that differ in rule and budgets only: a model is loaded once."""
        if self._start is not None:
            own, point = self._start
            if (
                comparable(settings, own)
                and comparable(own, settings)
                and own.seed == settings.seed
                and own.loop == settings.loop
            ):
                return point
        self._start = settings, start(settings)
        return self._start[1]

    def _part(self, name: str) -> Path:
        how = digest({"d": as_plain(self.diagnosis), "v": as_plain(self.validation)})
        folder = self.folder / PARTS
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name[:SHORT]}-{how[:SHORT]}.json"


def study_of(args: argparse.Namespace) -> Study:
    """Read the experiment and check everything that can be wrong before any work."""
    experiment = load_experiment(args.experiment, overrides(args))
    sections = {"diagnosis": experiment.diagnosis, "validation": experiment.validation}
    diagnosis, validation = read_sections(sections)
    ProductBudget.of(diagnosis.budget)
    cells = choose(expand(experiment, read_config), args.only)
    by_seed = sorted(cells, key=lambda cell: cell.seed)
    return Study(experiment, by_seed, diagnosis, validation, args.out)
