"""From measured numbers to the report: blocks, totals, odds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from risegrad.curvature.estimates.damage_moments import less_damage_probability
from risegrad.curvature.estimates.estimated import Estimate
from risegrad.curvature.estimates.gradient_terms import Tick
from risegrad.curvature.estimates.measuring import Measured
from risegrad.curvature.estimates.spectral import Bounds, first_step_bounds, flat_signal
from risegrad.curvature.operators.products import Operator
from risegrad.foresight.diagnosis_options import Measurement
from risegrad.foresight.diagnosis_report import BlockReport, Diagnosis, Odds, Totals
from risegrad.theory import cantelli_certificate


def assemble(
    operator: Operator, g: Tensor, measured: Measured, eta: float, how: Measurement, tick: Tick
) -> Diagnosis:
    """Blocks, totals and odds; losses, seed and verdicts are filled in by the caller."""
    space = operator.space
    totals = _totals(operator, measured, eta)
    rho = how.damping if how.damping is not None else _default_damping(totals)
    scores = _flat_signals(operator, g, measured, rho, how, tick)
    blocks = tuple(_block(operator, measured, b, scores[b]) for b in range(len(space.blocks)))
    return Diagnosis(
        curvature="given", step=eta, seed=0, damping=rho,
        historical_loss=math.nan, incoming_loss=math.nan,
        blocks=blocks, totals=totals, odds=_odds(totals, how.positive),
        top_eigenvalue=None, adam=None, products=0, probes=measured.probes.count,
        exact_directions=measured.gradient.count == 0,
        asymmetry=measured.probes.asymmetry,
    )  # fmt: skip


def _totals(operator: Operator, measured: Measured, eta: float) -> Totals:
    def at(name: str) -> Estimate:
        return _estimate(measured, name)

    g2 = measured.gradient.terms().g2
    kept = (operator.space.numbers("mean_factor") * g2).sum()
    return Totals(
        fo=at("damage.fo"), scaled_fo=at("damage.scaled_fo"),
        rise=at("damage.rise"), rise_std=at("damage.rise_std"),
        # Mean damage sees second moments alone, and those are RISE's.
        covariance_noise=at("damage.rise"), covariance_noise_std=at("damage.covariance_noise_std"),
        gap=at("gap.total"), gap_within=at("gap.within"), progress_cost=at("progress_cost"),
        linear_fo=at("linear.fo"), linear_scaled_fo=at("linear.scaled_fo"),
        change_fo=at("change.fo"), change_scaled_fo=at("change.scaled_fo"),
        change_rise=at("change.rise"), change_rise_std=at("change.rise_std"),
        lambda_dir=at("lambda_dir"), lambda_avg=at("lambda_avg"),
        trace=at("trace"), trace_sq=at("trace_sq"),
        fo_progress=eta * g2.sum().item(), rise_progress=eta * kept.item(),
    )  # fmt: skip


def _block(operator: Operator, measured: Measured, b: int, score: Bounds | None) -> BlockReport:
    block, paired = operator.space.blocks[b], operator.space.paired
    g2 = measured.gradient.terms().g2[b].item()

    def at(name: str) -> Estimate:
        return _estimate(measured, f"block.{name}", b)

    return BlockReport(
        name=block.name, d=block.d, q=block.q, tau=block.tau, mean_factor=block.mean_factor,
        gradient_norm=g2**0.5,
        lambda_dir=at("lambda_dir") if g2 else None, lambda_avg=at("lambda_avg"),
        excess=at("excess") if g2 else None, S=at("S"), R=score,
        C=at("C") if paired else None, raw_C=at("raw_C") if paired else None,
        fo=at("fo"), ghg=at("ghg"), hg2=at("hg2"), trace=at("trace"), trace_sq=at("trace_sq"),
    )  # fmt: skip


def _estimate(measured: Measured, name: str, b: int | None = None) -> Estimate:
    value, error = measured.values[name], measured.errors[name]
    if b is not None:
        value, error = value[b], error[b]
    return Estimate(value.item(), error.item(), measured.probes.count)


def _odds(totals: Totals, positive: bool) -> Odds:
    fo, rise, std = (e.value for e in (totals.fo, totals.rise, totals.rise_std))
    gap = torch.tensor(fo - rise, dtype=torch.float64)
    spread = torch.tensor(std**2, dtype=torch.float64)
    return Odds(
        probability=less_damage_probability(rise, std, fo, positive),
        sign=1 if fo > rise else -1,
        certified=cantelli_certificate(gap, spread).probability.item(),
    )


def _default_damping(totals: Totals) -> float | None:
    """The average curvature: directions flatter than the average count as flat."""
    average = totals.lambda_avg.value
    return average if average > 0 else None


def _flat_signals(
    operator: Operator, g: Tensor, measured: Measured, rho: float | None, how: Measurement,
    tick: Tick,
) -> list[Bounds | None]:  # fmt: skip
    """``R_b`` after the one step that is free for all blocks, and solved for where wanted.

    Where blocks share signed products that step is not free: one product for each block that is
    shown, because bounds from estimates would not be bounds.

    The bounds hold for curvature that is not negative; for an indefinite Hessian nothing is said.
    """
    count = len(operator.space.blocks)
    if rho is None or not how.positive:
        return [None] * count
    terms = measured.gradient.terms()
    scores: list[Bounds | None] = [None] * count
    if measured.gradient.count == 0:
        ghg, hg2 = terms.ghg.tolist(), terms.hg2.tolist()
        rows = zip(terms.g2.tolist(), ghg, hg2, strict=True)
        # Rounding can leave g'Hg a hair below zero where it is zero.
        scores = [first_step_bounds(g2, max(bend, 0.0), pull, rho) for g2, bend, pull in rows]
    else:
        shaped = measured.values["block.S"].abs()
        shown = shaped.argsort(descending=True)[: how.budget.flat_scores].tolist()
        for b, found in _first_steps(operator, g, shown, rho, tick):
            scores[b] = found
    largest = terms.g2.argsort(descending=True)[: how.budget.solves].tolist()
    for b in largest:
        scores[b] = _solved(operator, g, b, rho, how.budget.solve_products, tick)
    return scores


def _first_steps(
    operator: Operator, g: Tensor, chosen: Sequence[int], rho: float, tick: Tick
) -> Iterator[tuple[int, Bounds]]:
    """One product for each of these blocks, as many at a time as share a forward pass."""
    for start in range(0, len(chosen), operator.columns):
        part = chosen[start : start + operator.columns]
        blocks = [operator.space.blocks[b].at for b in part]
        wide = torch.zeros(len(g), len(part), dtype=g.dtype, device=g.device)
        for column, at in enumerate(blocks):
            wide[at, column] = g[at]
        product = operator @ wide
        tick(len(part))
        for column, (b, at) in enumerate(zip(part, blocks, strict=True)):
            own, pull = g[at].double(), product[at, column].double()
            bend = max(float(own @ pull), 0.0)
            yield b, first_step_bounds(float(own @ own), bend, float(pull @ pull), rho)


def _solved(operator: Operator, g: Tensor, b: int, rho: float, products: int, tick: Tick) -> Bounds:
    solved = flat_signal(operator.block(b), g[operator.space.blocks[b].at], rho, products)
    tick(solved.products)
    return solved
