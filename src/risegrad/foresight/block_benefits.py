"""Shaping one block at a time: what it does to the historical loss, beside the block's scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from risegrad.core.draws import mix, numbered_generator
from risegrad.core.rise_rule import shape
from risegrad.curvature.operators.parameter_space import MOST_PAIRED, Block
from risegrad.foresight.diagnosis import diagnose_operator
from risegrad.foresight.diagnosis_report import BlockReport
from risegrad.foresight.foresight_agreement import BlockBenefit
from risegrad.foresight.foresight_settings import DiagnosisSettings, ValidationSettings
from risegrad.foresight.local_updates import Bench, step_sizes_for
from risegrad.foresight.session_diagnosis import measurement_of
from risegrad.foresight.session_problem import SessionProblem

DAMAGE = 0.05
"""Of FO's whole walk at the longest horizon, in parts of the historical loss: well inside the
quadratic picture for one step, and far enough to measure."""
STEPS = (1, 8)


def block_benefits(
    problem: SessionProblem, how: DiagnosisSettings, validation: ValidationSettings
) -> list[BlockBenefit]:
    """Scores of some blocks, and the benefit of shaping each of them alone, by steps."""
    scores = _scores(problem, how)
    chosen = spread_out(scores, validation.blocks)
    bench = _bench(problem, how)
    (eta,) = step_sizes_for(bench, problem.gradient, [DAMAGE])
    eta /= max(STEPS)
    plain = {steps: _after(bench, eta, steps) for steps in STEPS}
    return [
        _benefit(bench, number, scores[number], eta, steps, plain[steps], validation, how.seed)
        for number in chosen
        for steps in STEPS
    ]


def _scores(problem: SessionProblem, how: DiagnosisSettings) -> Sequence[BlockReport]:
    """Exact directions where pairs are kept, so that every score is known."""
    measurement = measurement_of(replace(how, dampings=()))
    budget = replace(measurement.budget, gradients=MOST_PAIRED)
    measurement = replace(measurement, budget=budget)
    plain = problem.operator(measurement.curvature, budget.columns, how.seed)
    operator, g, h = problem.in_steps(plain)
    return diagnose_operator(operator, g, h, measurement=measurement).blocks


def _bench(problem: SessionProblem, how: DiagnosisSettings) -> Bench:
    rates = None if problem.scale is None else problem.space.spread(problem.scale.square())
    kind = measurement_of(how).curvature
    return Bench.of(
        problem.kept, problem.new, problem.space, problem.parameters, [kind], how.seed, rates=rates
    )


def spread_out(scores: Sequence[BlockReport], count: int) -> list[int]:
    """Numbers of so many blocks, evenly from the smallest S to the largest."""
    order = sorted(range(len(scores)), key=lambda number: scores[number].S.value)
    if len(order) <= count:
        return order
    if count == 1:
        return [order[-1]]
    return [order[round(k * (len(order) - 1) / (count - 1))] for k in range(count)]


def _benefit(
    bench: Bench, number: int, report: BlockReport, eta: float, steps: int, plain: float,
    validation: ValidationSettings, seed: int,
) -> BlockBenefit:  # fmt: skip
    block = bench.space.blocks[number]
    shorter = _after(bench, eta, steps, block, None)
    seeds = [mix(seed, 11, number, draw) for draw in range(validation.block_draws)]
    drawn = [_after(bench, eta, steps, block, own) for own in seeds]
    mean, spread = fmean(drawn), torch.tensor(drawn, dtype=torch.float64).std().item()
    middle = None
    if report.R is not None:
        middle = (report.R.lower + report.R.upper) / 2
    return BlockBenefit(
        report.name, report.d, report.S.value, report.lambda_avg.value, middle,
        None if report.C is None else report.C.value, steps,
        plain - mean, shorter - mean, spread / len(drawn) ** 0.5 if len(drawn) > 1 else 0.0,
    )  # fmt: skip


def _after(
    bench: Bench, eta: float, steps: int, block: Block | None = None, seed: int | None = None
) -> float:
    """The historical loss after some steps of descent, with one block shaped or shortened."""
    total = torch.zeros(bench.space.d, dtype=bench.space.dtype, device=bench.space.device)
    for step in range(steps):
        with bench.moved(total):
            g = bench.gradient()
        x = bench.direction("FO", _changed(g, block, None if seed is None else mix(seed, step)), 0)
        total = total - eta * x
    with bench.moved(total):
        return bench.kept.value()


def _changed(g: Tensor, block: Block | None, seed: int | None) -> Tensor:
    if block is None:
        return g
    part = g[block.at]
    if seed is None:
        changed = block.mean_factor * part
    else:
        changed = shape(part, block.q, numbered_generator(seed, 0, g.device))
    return torch.cat([g[: block.start], changed, g[block.stop :]])
