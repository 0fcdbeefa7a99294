"""Neural local validation: how well predicted and true changes of the old loss agree.

At checkpoints of a session, curvature by curvature, and up to which step size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, cast

import torch

from risegrad.common.text_columns import text_columns
from risegrad.curvature.damage import Calibration, evaluate
from risegrad.curvature.diagnosis.diagnose import measure
from risegrad.curvature.diagnosis.report import plain
from risegrad.curvature.diagnosis.rules import Measured
from risegrad.curvature.estimates import ProductBudget
from risegrad.curvature.products import Kind
from riselab.foresight.local_updates import (
    RANDOM,
    Bench,
    Outcome,
    recommended_rules,
    step_sizes_for,
    validate,
)
from riselab.foresight.session import SessionProblem
from riselab.foresight.settings import DiagnosisSettings, ValidationSettings

GOOD = 0.25
"""Relative error of a prediction that still counts as the quadratic picture holding."""


@dataclass(frozen=True)
class Agreement:
    """One curvature over a set of updates."""

    curvature: str
    count: int
    rank_correlation: float | None
    """between predicted and true change (Spearman): scales of many orders do not drown it"""
    damage_correlation: float | None
    """the same for the second-order part: true change less its first-order term"""
    sign_agreement: float
    """part of the updates whose predicted change has the sign of the true one"""
    better_agreement: float | None
    """part of the RISE draws for which it was predicted rightly whether they beat FO"""
    relative_error: float
    """median of ``|predicted - true|/|true|``"""


def agreement(outcomes: Sequence[Outcome], curvature: str) -> Agreement:
    """All numbers of one curvature."""
    true = [o.true for o in outcomes]
    predicted = [o.predicted(curvature) for o in outcomes]
    errors = [relative_error(o, curvature) for o in outcomes]
    same = [
        math.copysign(1, a) == math.copysign(1, b) for a, b in zip(true, predicted, strict=True)
    ]
    return Agreement(
        curvature=curvature,
        count=len(outcomes),
        rank_correlation=rank_correlation(predicted, true),
        damage_correlation=rank_correlation(
            [o.damage[curvature] for o in outcomes], [o.true - o.linear for o in outcomes]
        ),
        sign_agreement=sum(same) / len(same),
        better_agreement=_better(outcomes, curvature),
        relative_error=median(errors),
    )


def relative_error(outcome: Outcome, curvature: str) -> float:
    """``|predicted / true - 1|``."""
    if outcome.true == 0:
        return 0.0 if outcome.predicted(curvature) == 0 else math.inf
    return abs(outcome.predicted(curvature) / outcome.true - 1)


def _better(outcomes: Sequence[Outcome], curvature: str) -> float | None:
    """RISE draws against the FO update of the same checkpoint, size and number of steps."""
    plain = {(o.checkpoint, o.step_size, o.steps): o for o in outcomes if o.rule == "FO"}
    rows = [(o, plain[o.checkpoint, o.step_size, o.steps]) for o in outcomes
            if o.rule == "RISE" and (o.checkpoint, o.step_size, o.steps) in plain]  # fmt: skip
    if not rows:
        return None
    right = [
        (o.true < fo.true) == (o.predicted(curvature) < fo.predicted(curvature)) for o, fo in rows
    ]
    return sum(right) / len(right)


def breaking_point(
    outcomes: Sequence[Outcome], curvature: str, steps: int, rule: str
) -> float | None:
    """The largest step size up to which a rule's median error stays below ``GOOD``; None if none.

    Rule by rule: at one step size FO goes much further than the rules that shrink the mean.
    """
    mine = [o for o in outcomes if (o.steps, o.rule) == (steps, rule)]
    last = None
    for size in sorted({o.step_size for o in mine}):
        if median(relative_error(o, curvature) for o in mine if o.step_size == size) > GOOD:
            break
        last = size
    return last


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's correlation; None where one side does not vary.

    >>> rank_correlation([1, 2, 3], [1, 8, 27])
    1.0
    """
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = x.norm() * y.norm()
    return None if len(a) < 3 or scale == 0 else round(float(x @ y / scale), 12)


def _ranks(values: Sequence[float]) -> torch.Tensor:
    """Ranks, equal values sharing the mean of theirs."""
    tensor = torch.tensor(values, dtype=torch.float64)
    below = (tensor[:, None] > tensor).sum(1).double()
    equal = (tensor[:, None] == tensor).sum(1).double()
    return below + (equal - 1) / 2


@dataclass(frozen=True)
class AgreementSpread:
    """Draws of a random rule at one step size beside the moments predicted for them."""

    rule: str
    step_size: float
    draws: int
    mean: float
    std: float


def spreads(outcomes: Sequence[Outcome]) -> list[AgreementSpread]:
    """One-step draws of the random rules, by step size."""
    found = []
    for rule in RANDOM:
        for size in sorted({o.step_size for o in outcomes}):
            true = [o.true for o in outcomes
                    if (o.rule, o.step_size, o.steps) == (rule, size, 1)]  # fmt: skip
            if len(true) > 1:
                values = torch.tensor(true, dtype=torch.float64)
                found.append(
                    AgreementSpread(
                        rule, size, len(true), values.mean().item(), values.std().item()
                    )
                )
    return found


Tick = Callable[[str, str], None]
"""Called with what is being done, and how far it is."""


@dataclass(frozen=True)
class LocalSettings:
    """What a local validation is of, and how it measures."""

    diagnosis: DiagnosisSettings = field(default_factory=DiagnosisSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)
    subject: str = ""
    """the run and the point of its stream, in words"""
    run: str = ""
    """the id of the run"""


@dataclass(frozen=True)
class PredictedSpread:
    """Draws at one step size, and the mean and deviation that the exact moments give them."""

    drawn: AgreementSpread
    mean: float
    std: float
    score: float
    """distance of the means in standard errors, from the predicted deviation"""


@dataclass(frozen=True)
class Checkpoint:
    """All that was measured after some steps into the incoming task."""

    steps: int
    historical_loss: float
    incoming_loss: float
    step_sizes: tuple[float, ...]
    outcomes: tuple[Outcome, ...]
    predicted: tuple[PredictedSpread, ...]
    """empty where there are too many blocks for exact moments"""
    products: int


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
        """The rules that were measured."""
        return tuple(dict.fromkeys(outcome.rule for outcome in self.outcomes))

    def agreements(self, steps: int | None = None) -> list[Agreement]:
        """Of all updates, or of those with this many steps, for each kind of curvature."""
        rows = [o for o in self.outcomes if steps in (None, o.steps)]
        return [agreement(rows, curvature) for curvature in self.settings.validation.curvatures]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        v = self.settings.validation
        content: dict[str, Any] = plain({
            "settings": asdict(self.settings),
            "parameters": self.parameters,
            "blocks": self.blocks,
            "seconds": round(self.seconds, 1),
            "environment": self.environment,
            "agreement": [asdict(row) for row in self.agreements()],
            "agreement_by_steps": {
                str(count): [asdict(row) for row in self.agreements(count)] for count in v.steps
            },
            "quadratic_up_to": [
                {"checkpoint": point.steps, "steps": count, "curvature": curvature,
                 "step_size": {rule: breaking_point(point.outcomes, curvature, count, rule)
                               for rule in self.rules}}
                for point in self.checkpoints for count in v.steps for curvature in v.curvatures
            ],
            "checkpoints": [asdict(point) for point in self.checkpoints],
        })  # fmt: skip
        return content

    def __str__(self) -> str:
        """Agreement of each curvature, where the quadratic picture ends, the predicted draws."""
        v = self.settings.validation
        lines = [
            f"local validation: {self.blocks} blocks, {self.parameters:,} parameters, "
            f"{len(self.outcomes)} updates at {len(self.checkpoints)} checkpoints, "
            f"{self.seconds:.0f} s"
        ]
        for count in v.steps:
            lines += ["", f"updates of {count} step{'s' if count > 1 else ''}"]
            lines += text_columns([AGREEMENT_HEAD, *map(agreement_cells, self.agreements(count))])
        ends = [("within 25% up to", "steps", "curvature", *self.rules)]
        draws = [("RISE draws", "step size", "mean", "predicted", "std", "predicted", "score")]
        for point in self.checkpoints:
            name = f"checkpoint {point.steps}"
            for count in v.steps:
                for kind in v.curvatures:
                    found = (breaking_point(point.outcomes, kind, count, r) for r in self.rules)
                    sizes = ("none" if end is None else f"{end:.3g}" for end in found)
                    ends.append((name, str(count), kind, *sizes))
            draws += [
                (name, f"{row.drawn.step_size:.3g}", f"{row.drawn.mean:.3g}", f"{row.mean:.3g}",
                 f"{row.drawn.std:.2g}", f"{row.std:.2g}", f"{row.score:+.1f}")
                for row in point.predicted
            ]  # fmt: skip
        lines += ["", *text_columns(ends)]
        return "\n".join([*lines, *(["", *text_columns(draws)] if len(draws) > 1 else [])])


AGREEMENT_HEAD = (
    "curvature", "updates", "rank corr.", "damage corr.", "sign", "RISE against FO", "median error",
)  # fmt: skip


def agreement_cells(row: Agreement) -> tuple[str, ...]:
    """The cells of one curvature's row."""
    ranks = (row.rank_correlation, row.damage_correlation)
    return (
        row.curvature, str(row.count), *("-" if r is None else f"{r:.3f}" for r in ranks),
        f"{row.sign_agreement:.0%}",
        "-" if row.better_agreement is None else f"{row.better_agreement:.0%}",
        f"{row.relative_error:.2g}",
    )  # fmt: skip


def run_local(
    settings: LocalSettings,
    problem: Callable[[int], SessionProblem],
    tick: Tick = lambda stage, detail: None,
) -> LocalResult:
    """Measure at every checkpoint; ``problem(steps)`` gives the session so many steps into it."""
    started = time.perf_counter()
    tick("the session", "")
    points = [
        (at := problem(steps), _checkpoint(settings, at, steps, tick))
        for steps in sorted(settings.validation.checkpoints)
    ]
    space = points[0][0].space
    seconds = time.perf_counter() - started
    found = tuple(point for _, point in points)
    return LocalResult(settings, space.d, len(space.blocks), found, seconds)


def _checkpoint(
    settings: LocalSettings, problem: SessionProblem, steps: int, tick: Tick
) -> Checkpoint:
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
    tick(f"{name}: moments", "")
    first = next(iter(bench.operators.values()))
    measured = measure(*problem.in_steps(first), 1.0, budget, seed)
    sizes = v.step_sizes or tuple(step_sizes_for(bench, g, v.damages))
    outcomes = validate(bench, sizes, v.steps, v.draws, seed, steps, tick=partial(tick, name))
    drawn = [spread for spread in spreads(outcomes) if spread.rule == "RISE"]
    return Checkpoint(
        steps, problem.kept.value(), problem.new.value(), tuple(sizes), tuple(outcomes),
        tuple(_predicted(spread, measured, bench) for spread in drawn if measured.gradient),
        sum(operator.products for operator in bench.operators.values()),
    )  # fmt: skip


def _predicted(spread: AgreementSpread, measured: Measured, bench: Bench) -> PredictedSpread:
    assert measured.gradient is not None
    calibration = Calibration.of(bench.space)
    values = evaluate(measured.gradient, measured.probes.terms(), calibration, spread.step_size)
    mean, std = values["change.rise"].item(), values["change.rise_std"].item()
    # The predicted deviation: that of a few draws is a poor measure of itself.
    error = std / spread.draws**0.5
    return PredictedSpread(spread, mean, std, (spread.mean - mean) / error if error else 0.0)
