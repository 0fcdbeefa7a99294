"""Local validation of a whole experiment: checkpoints of a small stream, measured one by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from risegrad.core.shapers import Rise
from risegrad.curvature.estimates.damage_moments import Calibration, evaluate
from risegrad.curvature.estimates.measuring import Measured, measure
from risegrad.curvature.estimates.product_budget import ProductBudget
from risegrad.curvature.operators.objective import Objective
from risegrad.curvature.operators.parameter_space import make_space, trained_parameters
from risegrad.curvature.operators.products import Kind
from risegrad.foresight.diagnosis_report import plain
from risegrad.foresight.foresight_settings import ForesightSettings
from risegrad.foresight.local_agreement import (
    Agreement,
    AgreementSpread,
    agreement,
    breaking_point,
    spreads,
)
from risegrad.foresight.local_checkpoint import (
    Checkpoint,
    PredictedSpread,
    part_name,
    read_part,
    write_part,
)
from risegrad.foresight.local_updates import RULES, Bench, Outcome, step_sizes_for, validate
from risegrad.foresight.problem_builder import Problem, build, warm_up

Tick = Callable[[str, str], None]
"""Called with what is being done, and how far it is."""


def silent(stage: str, detail: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class LocalResult:
    """What a local validation found, checkpoint by checkpoint."""

    settings: ForesightSettings
    parameters: int
    blocks: int
    checkpoints: tuple[Checkpoint, ...]
    seconds: float

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all checkpoints."""
        return [outcome for point in self.checkpoints for outcome in point.outcomes]

    @property
    def curvatures(self) -> tuple[str, ...]:
        """The kinds of curvature that were compared."""
        return self.settings.validation.curvatures

    def agreements(self, steps: int | None = None) -> list[Agreement]:
        """Of all updates, or of those with this many steps."""
        rows = [o for o in self.outcomes if steps in (None, o.steps)]
        return [agreement(rows, curvature) for curvature in self.curvatures]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; paths of the machine it ran on are left out."""
        settings = asdict(self.settings)
        settings.pop("folder")
        settings["model"]["path"] = settings["data"]["path"] = ""
        lengths = self.settings.validation.steps
        content: dict[str, Any] = plain({
            "settings": settings,
            "parameters": self.parameters,
            "blocks": self.blocks,
            "seconds": round(self.seconds, 1),
            "agreement": [asdict(row) for row in self.agreements()],
            "agreement_by_steps": {
                str(count): [asdict(row) for row in self.agreements(count)] for count in lengths
            },
            "quadratic_up_to": [
                {"checkpoint": point.steps, "steps": count, "curvature": curvature,
                 "step_size": {rule: breaking_point(point.outcomes, curvature, count, rule)
                               for rule in RULES}}
                for point in self.checkpoints for count in lengths for curvature in self.curvatures
            ],
            "checkpoints": [asdict(point) for point in self.checkpoints],
        })  # fmt: skip
        return content


def run_local(
    settings: ForesightSettings, tick: Tick = silent, kept: Path | None = None
) -> LocalResult:
    """Build, learn, measure at every checkpoint; those that are in the folder ``kept`` are read."""
    started = time.perf_counter()
    tick("model and data", "")
    problem = build(settings)
    shaper = Rise(**asdict(settings.rise))
    parameters = trained_parameters(problem.model, shaper.exempt)
    everything = make_space(parameters, shaper)
    space, _ = _incoming(problem).step(everything, parameters, shaper)
    points, done = [], 0
    for steps in sorted(settings.validation.checkpoints):
        ahead = replace(problem, warm=problem.incoming)
        warm_up(ahead, steps - done, settings.warmup.learning_rate)
        done = steps
        file = kept and kept / part_name(settings, steps)
        point = file and read_part(file)
        if not point:
            point = _checkpoint(settings, problem, shaper, steps, tick)
            if file:
                write_part(file, point)
        points.append(point)
    seconds = time.perf_counter() - started
    return LocalResult(settings, space.d, len(space.blocks), tuple(points), seconds)


def _checkpoint(
    settings: ForesightSettings, problem: Problem, shaper: Rise, steps: int, tick: Tick
) -> Checkpoint:
    v, seed = settings.validation, settings.diagnosis.seed
    parameters = trained_parameters(problem.model, shaper.exempt)
    kept = Objective(problem.model, problem.historical, problem.loss, what="historical")
    new = _incoming(problem)
    space, g = new.step(make_space(parameters, shaper), parameters, shaper)
    budget = ProductBudget.of(settings.diagnosis.budget)
    kinds = cast(tuple[Kind, ...], v.curvatures)
    bench = Bench.of(kept, new, space, parameters, kinds, seed, budget.columns)
    name = f"checkpoint {steps}"
    measured = _measured(bench, g, budget, seed, partial(tick, f"{name}: moments"))
    sizes = v.step_sizes or tuple(step_sizes_for(bench, g, v.damages))
    outcomes = validate(bench, sizes, v.steps, v.draws, seed, steps, tick=partial(tick, name))
    return Checkpoint(
        steps, kept.value(), new.value(), tuple(sizes), tuple(outcomes),
        tuple(_predicted(spread, measured, bench) for spread in spreads(outcomes)
              if spread.rule == "RISE"),
        sum(operator.products for operator in bench.operators.values()),
    )  # fmt: skip


def _incoming(problem: Problem) -> Objective:
    return Objective(problem.model, problem.incoming, problem.loss, what="incoming")


def _measured(
    bench: Bench, g: Any, budget: ProductBudget, seed: int, tell: Callable[[str], None]
) -> Measured:
    """Moments from the first curvature of the list."""
    operator = next(iter(bench.operators.values()))
    h = bench.kept.gradient(bench.space, bench.parameters)

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
