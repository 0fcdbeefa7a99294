"""The rows of an experiment as they run: their own first steps from one point, and the damage.

A step is taken by the run's own code, with its optimizer, rate, clipping and additions, and undone;
so whatever a rule is, its displacement is known and one product with the curvature prices it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from risegrad.continual.session_training import SessionTraining
from risegrad.core.draws import mix
from risegrad.core.parameter_names import plain_name
from risegrad.curvature.estimates.estimated import Estimate
from risegrad.curvature.estimates.rule_prices import Bends, priced
from risegrad.curvature.operators.parameter_space import Space
from risegrad.curvature.operators.products import Operator
from risegrad.foresight.reached_point import ReachedPoint, steps_from
from risegrad.foresight.rule_forecast import RuleForecast


@dataclass(frozen=True)
class ExperimentRow:
    """A row of the experiment: its label and its settings."""

    label: str
    settings: Any

    @property
    def is_fo(self) -> bool:
        """Whether it steps along the exact gradient."""
        return bool(self.settings.rule.name == "fo")


def session_values(training: SessionTraining, space: Space) -> Tensor:
    """The session's parameters as one vector."""
    named = {plain_name(n): p for n, p in training.session.module.named_parameters()}
    return space.flat([named[name] for name in space.names])


def walk(
    point: ReachedPoint, row: ExperimentRow, space: Space, lengths: Sequence[int], seed: int
) -> Iterator[tuple[int, Tensor, SessionTraining]]:
    """The displacement after so many real steps, for each length that the session has steps for."""
    with point.undisturbed():
        training = point.training(row.settings, seed)
        start = session_values(training, space)
        for taken, _ in enumerate(steps_from(training, point.epoch), 1):
            if taken in lengths:
                yield taken, session_values(training, space) - start, training
            if taken >= max(lengths):
                return


def first_steps(
    point: ReachedPoint, space: Space, row: ExperimentRow, draws: int, seed: int
) -> Tensor:
    """The displacements ``D`` of a row's first step (d, K), on other batches each time.

    They leave the host moved: open the session again before measuring anything.
    """
    found = [
        move
        for draw in range(draws)
        for _, move, _ in walk(point, row, space, (1,), mix(seed, 5, draw) % 2**31)
    ]
    if not found:
        raise ValueError(f"row {row.label!r} takes no step in this session")
    return torch.stack(found, 1)


Steps = Mapping[str, Tensor]
"""Displacements by the label of the row; the first is the reference."""


def steps_of_rows(
    point: ReachedPoint, space: Space, rows: Sequence[ExperimentRow], draws: int, seed: int
) -> Steps:
    """Of all rows, the first that is FO first: it is what the others are compared with."""
    ordered = sorted(rows, key=lambda row: not row.is_fo)
    return {row.label: first_steps(point, space, row, draws, seed) for row in ordered}


def row_forecasts(
    operator: Operator, g: Tensor, h: Tensor, steps: Steps
) -> tuple[RuleForecast, ...]:
    """What the rows' first steps would do, one product each; ``h`` is the historical gradient."""
    found: list[RuleForecast] = []
    reference: Bends | None = None
    for label, moves in steps.items():
        moved = moves.double()
        bends = Bends.of(operator.bends(moves), -(g.double() @ moved))
        reference = reference or bends
        found.append(_forecast(label, bends, reference, (h.double() @ moved).cpu()))
    return tuple(found)


def _forecast(label: str, bends: Bends, reference: Bends, pulls: Tensor) -> RuleForecast:
    """``pulls``: of each draw, the first-order change of the historical loss."""
    rule = priced(bends, reference)
    progress = (bends.gains.mean() / reference.gains.mean()).item()
    found = RuleForecast(
        label, rule.share, rule.gain, rule.efficiency, _mean(bends.bends.sum(0) / 2), progress,
        products=bends.draws,
    )  # fmt: skip
    plain = reference.bends.sum(0).mean().item() / 2
    return found.changing(_mean(pulls / progress), plain)


def _mean(draws: Tensor) -> Estimate:
    error = draws.std().item() / len(draws) ** 0.5 if len(draws) > 1 else 0.0
    return Estimate(draws.mean().item(), error, len(draws))
