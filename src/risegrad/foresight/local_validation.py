"""Local validation: at checkpoints of a session, predicted and true changes of the old loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

from torch import Tensor

from risegrad.common.settings import read
from risegrad.curvature.estimates.damage_moments import Calibration, evaluate
from risegrad.curvature.estimates.measuring import Measured, measure
from risegrad.curvature.estimates.product_budget import ProductBudget
from risegrad.curvature.operators.objective import Objective
from risegrad.curvature.operators.products import Kind, Operator
from risegrad.foresight.diagnosis_report import plain
from risegrad.foresight.foresight_settings import ValidationSettings
from risegrad.foresight.local_agreement import (
    Agreement,
    AgreementSpread,
    agreement,
    breaking_point,
    spreads,
)
from risegrad.foresight.local_checkpoint import (
    Checkpoint,
    LocalSettings,
    PredictedSpread,
    part_name,
    read_part,
    write_part,
)
from risegrad.foresight.local_rules import Rememberable, recommended_rules
from risegrad.foresight.local_updates import Bench, Outcome, step_sizes_for, validate

Tick = Callable[[str, str], None]
"""Called with what is being done, and how far it is."""


def silent(stage: str, detail: str) -> None:
    """Say nothing."""


class Measurable(Rememberable, Protocol):
    """A point of a session, ready to be measured; ``SessionProblem`` is one."""

    @property
    def new(self) -> Objective:
        """What is learned now."""

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """By the names of the space."""

    @property
    def past_gradient(self) -> Tensor:
        """Of the old loss."""

    @property
    def scale(self) -> Tensor | None:
        """Roots of relative learning rates, by blocks."""

    def in_steps(self, operator: Operator) -> tuple[Operator, Tensor, Tensor]:
        """Operator and gradients in coordinates where one rate serves all groups."""


@dataclass(frozen=True)
class LocalResult:
    """What a local validation found, checkpoint by checkpoint."""

    settings: LocalSettings
    parameters: int
    blocks: int
    checkpoints: tuple[Checkpoint, ...]
    seconds: float
    environment: dict[str, Any] = field(default_factory=dict)
    """of a saved one: the commit and the machine's software"""

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all checkpoints."""
        return [outcome for point in self.checkpoints for outcome in point.outcomes]

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that were measured; early versions had fewer."""
        return tuple(dict.fromkeys(outcome.rule for outcome in self.outcomes))

    @property
    def curvatures(self) -> tuple[str, ...]:
        """The kinds of curvature that were compared."""
        return self.settings.validation.curvatures

    def agreements(self, steps: int | None = None) -> list[Agreement]:
        """Of all updates, or of those with this many steps."""
        rows = [o for o in self.outcomes if steps in (None, o.steps)]
        return [agreement(rows, curvature) for curvature in self.curvatures]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        lengths = self.settings.validation.steps
        content: dict[str, Any] = plain({
            "settings": asdict(self.settings),
            "parameters": self.parameters,
            "blocks": self.blocks,
            "seconds": round(self.seconds, 1),
            "environment": self.environment,
            "agreement": [asdict(row) for row in self.agreements()],
            "agreement_by_steps": {
                str(count): [asdict(row) for row in self.agreements(count)] for count in lengths
            },
            "quadratic_up_to": [
                {"checkpoint": point.steps, "steps": count, "curvature": curvature,
                 "step_size": {rule: breaking_point(point.outcomes, curvature, count, rule)
                               for rule in self.rules}}
                for point in self.checkpoints for count in lengths for curvature in self.curvatures
            ],
            "checkpoints": [asdict(point) for point in self.checkpoints],
        })  # fmt: skip
        return content

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> LocalResult:
        """What ``to_dict`` gave, from a file; those of early versions too."""
        given = content["settings"]
        steps = read(ValidationSettings, given["validation"], "validation")
        settings = LocalSettings(validation=steps, subject=str(given.get("subject", "")))
        points = tuple(read(Checkpoint, point) for point in content["checkpoints"])
        return LocalResult(
            settings, content["parameters"], content["blocks"], points, content["seconds"],
            content.get("environment", {}),
        )  # fmt: skip


def run_local(
    settings: LocalSettings,
    problem: Callable[[int], Measurable],
    tick: Tick = silent,
    kept: Path | None = None,
) -> LocalResult:
    """Measure at every checkpoint; those that are in the folder ``kept`` are read.

    ``problem(steps)`` gives the session so many steps into it.
    """
    started = time.perf_counter()
    tick("the session", "")
    space = problem(0).space
    points = []
    for steps in sorted(settings.validation.checkpoints):
        file = kept and kept / part_name(settings, steps)
        point = file and read_part(file)
        if not point:
            point = _checkpoint(settings, problem(steps), steps, tick)
            if file:
                write_part(file, point)
        points.append(point)
    seconds = time.perf_counter() - started
    return LocalResult(settings, space.d, len(space.blocks), tuple(points), seconds)


def _checkpoint(settings: LocalSettings, problem: Measurable, steps: int, tick: Tick) -> Checkpoint:
    v, seed = settings.validation, settings.diagnosis.seed
    budget = ProductBudget.of(settings.diagnosis.budget)
    kinds = cast(tuple[Kind, ...], v.curvatures)
    space, g = problem.space, problem.gradient
    rates = None if problem.scale is None else space.spread(problem.scale.square())
    bench = Bench.of(
        problem.kept, problem.new, space, problem.parameters, kinds, seed, budget.columns, rates
    )
    bench = replace(bench, more=recommended_rules(problem, settings.diagnosis, rates))
    name = f"checkpoint {steps}"
    measured = _measured(problem, bench, budget, seed, partial(tick, f"{name}: moments"))
    sizes = v.step_sizes or tuple(step_sizes_for(bench, g, v.damages))
    outcomes = validate(bench, sizes, v.steps, v.draws, seed, steps, tick=partial(tick, name))
    return Checkpoint(
        steps, problem.kept.value(), problem.new.value(), tuple(sizes), tuple(outcomes),
        tuple(_predicted(spread, measured, bench) for spread in spreads(outcomes)
              if spread.rule == "RISE"),
        sum(operator.products for operator in bench.operators.values()),
    )  # fmt: skip


def _measured(
    problem: Measurable, bench: Bench, budget: ProductBudget, seed: int,
    tell: Callable[[str], None],
) -> Measured:  # fmt: skip
    """Moments from the first curvature of the list."""
    operator, g, h = problem.in_steps(next(iter(bench.operators.values())))

    def tick(count: int) -> None:
        tell(f"{operator.products} products")

    tell("")
    return measure(operator, g, h, 1.0, budget, seed, tick)


def _predicted(spread: AgreementSpread, measured: Measured, bench: Bench) -> PredictedSpread:
    terms = measured.gradient.terms(), measured.probes.terms()
    values = evaluate(*terms, Calibration.of(bench.space), spread.step_size)
    mean, std = values["change.rise"].item(), values["change.rise_std"].item()
    # The predicted deviation: that of a few draws is a poor measure of itself.
    error = std / spread.draws**0.5
    return PredictedSpread(spread, mean, std, (spread.mean - mean) / error if error else 0.0)
