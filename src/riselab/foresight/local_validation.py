"""Neural local validation: how well predicted and true changes of the old loss agree.

Before a session, curvature by curvature, and up to which step size.
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
from risegrad.curvature.diagnosis.report import plain
from risegrad.curvature.estimates import ProductBudget
from risegrad.curvature.products import Kind
from riselab.common.settings import read
from riselab.foresight import local_updates as updates
from riselab.foresight.local_updates import Outcome
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

    @staticmethod
    def of(outcomes: Sequence[Outcome], curvature: str) -> Agreement:
        """All numbers of one curvature."""
        true = [o.true for o in outcomes]
        predicted = [o.predicted(curvature) for o in outcomes]
        signs = zip(true, predicted, strict=True)
        same = [math.copysign(1, a) == math.copysign(1, b) for a, b in signs]
        damages = [o.damage[curvature] for o in outcomes]
        return Agreement(
            curvature,
            len(outcomes),
            rank_correlation(predicted, true),
            rank_correlation(damages, [o.true - o.linear for o in outcomes]),
            sum(same) / len(same),
            _better(outcomes, curvature),
            median(relative_error(o, curvature) for o in outcomes),
        )


def relative_error(outcome: Outcome, curvature: str) -> float:
    """``|predicted / true - 1|``."""
    if outcome.true == 0:
        return 0.0 if outcome.predicted(curvature) == 0 else math.inf
    return abs(outcome.predicted(curvature) / outcome.true - 1)


def _better(outcomes: Sequence[Outcome], curvature: str) -> float | None:
    """RISE draws against the FO update of the same size and number of steps."""
    fo = {(o.step_size, o.steps): o for o in outcomes if o.rule == "FO"}
    rows = [(o, fo.get((o.step_size, o.steps))) for o in outcomes if o.rule == "RISE"]
    right = [
        (o.true < other.true) == (o.predicted(curvature) < other.predicted(curvature))
        for o, other in rows
        if other is not None
    ]
    return sum(right) / len(right) if right else None


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
class LocalResult:
    """What a local validation found."""

    settings: LocalSettings
    parameters: int
    blocks: int
    historical_loss: float
    incoming_loss: float
    step_sizes: tuple[float, ...]
    outcomes: tuple[Outcome, ...]
    products: int
    seconds: float
    environment: dict[str, Any] = field(default_factory=dict)
    """of a saved one: the commit and the machine's software"""

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that were measured."""
        return tuple(dict.fromkeys(outcome.rule for outcome in self.outcomes))

    def agreements(self, steps: int | None = None) -> list[Agreement]:
        """Of all updates, or of those with this many steps, for each kind of curvature."""
        rows = [o for o in self.outcomes if steps in (None, o.steps)]
        return [Agreement.of(rows, curvature) for curvature in self.settings.validation.curvatures]

    def ends(self) -> list[tuple[int, str, dict[str, float | None]]]:
        """Steps, curvature, and by rule the largest step size within ``GOOD``."""
        v = self.settings.validation
        return [
            (n, kind, {rule: breaking_point(self.outcomes, kind, n, rule) for rule in self.rules})
            for n in v.steps for kind in v.curvatures
        ]  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        steps = self.settings.validation.steps
        names = ("steps", "curvature", "step_size")
        content: dict[str, Any] = plain(asdict(self) | {
            "seconds": round(self.seconds, 1),
            "agreement": [asdict(row) for row in self.agreements()],
            "agreement_by_steps": {
                str(count): [asdict(row) for row in self.agreements(count)] for count in steps
            },
            "quadratic_up_to": [dict(zip(names, end, strict=True)) for end in self.ends()],
        })  # fmt: skip
        return content

    def __str__(self) -> str:
        """Agreement of each curvature, and where the quadratic picture ends."""
        lines = [
            f"local validation: {self.blocks} blocks, {self.parameters:,} parameters, "
            f"{len(self.outcomes)} updates, {self.seconds:.0f} s"
        ]
        for count in self.settings.validation.steps:
            lines += ["", f"updates of {count} step{'s' if count > 1 else ''}"]
            lines += text_columns([AGREEMENT_HEAD, *map(_cells, self.agreements(count))])
        ends = [("within 25% up to", "curvature", *self.rules)]
        for count, kind, found in self.ends():
            sizes = ("none" if end is None else f"{end:.3g}" for end in found.values())
            ends.append((f"{count} steps", kind, *sizes))
        return "\n".join([*lines, "", *text_columns(ends)])


AGREEMENT_HEAD = (
    "curvature", "updates", "rank corr.", "damage corr.", "sign", "RISE against FO", "median error",
)  # fmt: skip


def _cells(row: Agreement) -> tuple[str, ...]:
    ranks = (row.rank_correlation, row.damage_correlation)
    return (
        row.curvature, str(row.count), *("-" if r is None else f"{r:.3f}" for r in ranks),
        f"{row.sign_agreement:.0%}",
        "-" if row.better_agreement is None else f"{row.better_agreement:.0%}",
        f"{row.relative_error:.2g}",
    )  # fmt: skip


def run_local(
    settings: LocalSettings, problem: SessionProblem, tick: Tick = lambda stage, detail: None
) -> LocalResult:
    """Measure at one point of a stream."""
    started = time.perf_counter()
    v, seed = settings.validation, settings.diagnosis.seed
    budget = read(ProductBudget, settings.diagnosis.budget, "budget")
    kinds = cast(tuple[Kind, ...], v.curvatures)
    space, g = problem.space, problem.gradient
    rates = None if problem.scale is None else space.spread(problem.scale.square())
    bench = updates.Bench.of(
        problem.kept, problem.new, space, problem.parameters, kinds, seed, budget.columns, rates
    )
    bench = replace(bench, more=updates.recommended_rules(problem, settings.diagnosis, rates))
    sizes = v.step_sizes or tuple(updates.step_sizes_for(bench, g, v.damages))
    told = partial(tick, "updates")
    outcomes = updates.validate(bench, sizes, v.steps, v.draws, seed, tick=told)
    return LocalResult(
        settings, space.d, len(space.blocks), problem.kept.value(), problem.new.value(),
        tuple(sizes), tuple(outcomes),
        sum(operator.products for operator in bench.operators.values()),
        time.perf_counter() - started,
    )  # fmt: skip
