"""``diagnose``: from a model, what it must keep and what it is to learn, to a report."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_number
from risegrad.core.draws import mix
from risegrad.core.shapers import Rise
from risegrad.curvature.batches import check_same_form, form_of
from risegrad.curvature.damage import Calibration, evaluate
from risegrad.curvature.diagnosis.candidates import Candidates, candidates_for
from risegrad.curvature.diagnosis.inputs import (
    BatchLoss,
    Measurement,
    Progress,
    check_options,
    cut,
    plain_step,
)
from risegrad.curvature.diagnosis.report import BlockReport, Diagnosis, Totals, verdicts
from risegrad.curvature.diagnosis.rules import Measured, Pricing, forecasts
from risegrad.curvature.estimates import (
    Estimate,
    ProductBudget,
    Tick,
    first_step_bounds,
    gradient_terms,
    jackknife,
    probed,
)
from risegrad.curvature.objective import Batches, Objective
from risegrad.curvature.products import NetworkOperator, Operator
from risegrad.curvature.space import Space, make_space, trained_parameters
from risegrad.memory.memory import Memory


def diagnose(
    model: nn.Module,
    historical: Batches,
    incoming: Batches,
    *,
    rise: Rise | None = None,
    memory: Memory | None = None,
    step: float = 1.0,
    batch_loss: BatchLoss | None = None,
    measurement: Measurement | None = None,
) -> Diagnosis:
    """What one step on ``incoming`` would do to the loss on ``historical``, rule by rule.

    ``model``: with or without peft. ``historical`` and ``incoming`` are lists (or loaders) of
    batches of one form: pairs ``(inputs, target)`` or mappings with ``labels`` as for transformers;
    ``BatchLoss(predict=...)`` reads other forms. One pair of tensors is divided into batches.
    ``rise`` is the shaper you would attach: its ``q``, ``blocks`` and ``exempt`` count. ``memory``
    would shape an informed step; make it from other examples than ``historical``. Without one, each
    half of the historical batches makes a memory that is judged on the other. ``step`` is the
    learning rate of plain descent; damage grows with its square. ``measurement`` chooses curvature,
    precision, seed and optimizer.

    The model is measured in eval mode (no dropout, running batch statistics) and restored
    afterwards; all numbers are a pure function of the model, the batches and the seed.
    """
    check_options(model, rise, memory, batch_loss, measurement)
    shaper, how, read = rise or Rise(), measurement or Measurement(), batch_loss or BatchLoss()
    parameters = trained_parameters(model, shaper.exempt)
    space = make_space(parameters, shaper)
    kept = Objective(model, cut(historical), read.loss, read.predict, "historical")
    new = Objective(model, cut(incoming), read.loss, read.predict, "incoming")
    check_same_form(new.batches, "incoming", form_of(kept.batches[0]))
    space, g = new.step(space, parameters, shaper)
    h = kept.gradient(space, parameters)
    columns, seed = how.budget.columns, mix(how.seed, 7) % 2**31
    operator = NetworkOperator(kept, space, parameters, how.curvature, columns=columns, seed=seed)
    chosen = candidates_for(kept, shaper, memory, how, space, parameters)
    found = diagnose_operator(
        operator, g, h, step=step, measurement=how, candidates=chosen,
        plain=plain_step(how.optimizer, g, space, parameters),
    )  # fmt: skip
    return replace(
        found, curvature=how.curvature, historical_loss=kept.value(), incoming_loss=new.value()
    )


def diagnose_operator(
    operator: Operator,
    g: Tensor,
    h: Tensor | None = None,
    *,
    step: float = 1.0,
    measurement: Measurement | None = None,
    candidates: Candidates | None = None,
    plain: Tensor | None = None,
) -> Diagnosis:
    """The same for any operator and given gradients (flat, in the order of its space).

    ``plain`` is the direction of an adaptive optimizer's step without a shaper, on which rules then
    act; None is plain descent. An operator that may be negative is a
    ``hessian``: ``Measurement(curvature="hessian")``.
    """
    how, eta = measurement or Measurement(), check_number("step", step, above=0)
    chosen, space = candidates or Candidates(), operator.space
    g = _check_gradient(g, space, "g")
    h = torch.zeros_like(g) if h is None else _check_gradient(h, space, "h")
    before = operator.products
    tick = _counter(how.progress, how.budget.products(space))
    measured = measure(operator, g, h, eta, how.budget, how.seed, tick)
    moving = bool(g.any())
    own = None if plain is None else _check_gradient(plain, space, "plain")
    pricing = Pricing(operator, g, h, own, eta) if moving else None
    totals = None
    if measured.values:
        totals = Totals(**{each.name: _estimate(measured, each.name) for each in fields(Totals)})
    rho = how.damping
    if rho is None and totals is not None and totals.lambda_avg.value > 0:
        rho = totals.lambda_avg.value  # directions flatter than the average count as flat
    blocks = _blocks(measured, space, rho if how.positive else None)
    found = Diagnosis(
        curvature="given", step=eta, seed=how.seed, damping=rho, historical_loss=math.nan,
        incoming_loss=math.nan, blocks=blocks, totals=totals, products=0,
        probes=measured.probes.count, asymmetry=measured.probes.asymmetry,
        rules=forecasts(pricing, measured, chosen, how.seed) if pricing else (),
        candidates=chosen,
    )  # fmt: skip
    found = replace(found, products=operator.products - before)
    return replace(found, verdicts=tuple(verdicts(found)))


def measure(
    operator: Operator, g: Tensor, h: Tensor, eta: float, budget: ProductBudget, seed: int,
    tick: Tick = lambda count: None,
) -> Measured:  # fmt: skip
    """The one pass: blocks' gradients first where they are few enough, then probes."""
    space = operator.space
    terms = gradient_terms(operator, g, h, tick) if space.by_block else None
    probes = probed(operator, g, budget, mix(seed, 2), tick)
    if terms is None:
        return Measured(probes)
    formula = partial(evaluate, terms, c=Calibration.of(space), eta=eta)
    return Measured(probes, terms, *jackknife(formula, probes))


def _blocks(measured: Measured, space: Space, rho: float | None) -> tuple[BlockReport, ...]:
    """``rho`` is None where nothing can be said about flat directions."""
    terms = measured.gradient
    if terms is None:
        return ()
    found = []
    for b, block in enumerate(space.blocks):
        g2, along, pull = terms.g2[b].item(), terms.ghg[b].item(), terms.hg2[b].item()
        at = {name: _estimate(measured, f"block.{name}", b) for name in SCORES}
        # Rounding can leave g'Hg a hair below zero where it is zero.
        flat = None if rho is None else first_step_bounds(g2, max(along, 0.0), pull, rho)
        found.append(BlockReport(
            block.name, block.d, block.q, block.tau, block.mean_factor, g2**0.5,
            at["lambda_dir"] if g2 else None, at["lambda_avg"], at["S"], at["C"], flat, at["fo"],
        ))  # fmt: skip
    return tuple(found)


SCORES = ("lambda_dir", "lambda_avg", "S", "C", "fo")


def _estimate(measured: Measured, name: str, b: int | None = None) -> Estimate:
    value, error = measured.values[name], measured.errors[name]
    if b is not None:
        value, error = value[b], error[b]
    return Estimate(value.item(), error.item(), measured.probes.count)


def _counter(progress: Progress | None, most: int) -> Tick:
    spent = 0

    def tick(count: int) -> None:
        nonlocal spent
        spent += count
        if progress is not None:
            progress(spent, most)

    return tick


def _check_gradient(g: Tensor, space: Space, name: str) -> Tensor:
    if tuple(g.shape) != (space.d,):
        raise ValueError(f"{name} must have shape ({space.d},), got {tuple(g.shape)}")
    if not bool(g.isfinite().all()):
        raise FloatingPointError(f"{name} must be finite")
    return g.to(space.device, space.dtype)
