"""``diagnose``: from a model, what it must keep and what it is to learn, to a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_number
from risegrad.core.draws import mix
from risegrad.core.shapers import Rise
from risegrad.curvature.estimates.adam_terms import adam_view
from risegrad.curvature.estimates.measuring import measure
from risegrad.curvature.estimates.spectral import top_eigenvalue
from risegrad.curvature.memory.memory import Memory
from risegrad.curvature.operators.batch_forms import check_same_form, form_of
from risegrad.curvature.operators.objective import Batches, Objective
from risegrad.curvature.operators.parameter_space import Space, make_space, trained_parameters
from risegrad.curvature.operators.products import NetworkOperator, Operator
from risegrad.foresight.diagnosis_assembly import assemble
from risegrad.foresight.diagnosis_inputs import check_options, problem_of
from risegrad.foresight.diagnosis_options import BatchLoss, Measurement, Progress
from risegrad.foresight.diagnosis_report import Diagnosis
from risegrad.foresight.diagnosis_verdicts import verdicts
from risegrad.foresight.memory_folds import candidates_for, with_pasts
from risegrad.foresight.optimizer_steps import optimizer_of, plain_step
from risegrad.foresight.rule_forecast import RuleForecast
from risegrad.foresight.rule_pricing import Pricing
from risegrad.foresight.step_rules import Candidates, forecasts

__all__ = ["Diagnosis", "diagnose", "diagnose_operator"]


def diagnose(
    model: nn.Module | Any,
    historical: Batches | Any,
    incoming: Batches | Any = None,
    *,
    rise: Rise | None = None,
    memory: Memory | None = None,
    step: float = 1.0,
    batch_loss: BatchLoss | None = None,
    measurement: Measurement | None = None,
) -> Diagnosis:
    """What one step on ``incoming`` would do to the loss on ``historical``, rule by rule.

    ``model``: a module, with peft or without, or a transformers Trainer. Both others are lists (or
    loaders) of batches of one form: pairs ``(inputs, target)`` or mappings with ``labels`` as
    transformers takes them; ``BatchLoss(predict=...)`` reads any other. One pair of tensors is cut
    into batches; with a Trainer they are data sets as it takes them, its own by default. ``rise``
    is the shaper you would attach: its ``q``, ``blocks`` and ``exempt`` are used. ``memory``: what
    an informed step would be shaped by, made from other examples than ``historical``; without one,
    each half of the historical batches is remembered and judged on the other. ``step`` is the
    learning rate of plain descent; damage grows with its square. ``measurement`` says which
    curvature is measured, how precisely, with which seed, and for which optimizer.

    The model is measured in eval mode (no dropout, running batch statistics), changed in nothing,
    and all numbers are a pure function of the model, the batches and the seed.
    """
    check_options(rise, memory, batch_loss, measurement)
    shaper, how = rise or Rise(), measurement or Measurement()
    read = batch_loss or BatchLoss()
    trains = optimizer_of(how.optimizer, model)
    model, historical, incoming = problem_of(model, historical, incoming)
    parameters = trained_parameters(model, shaper.exempt)
    space = make_space(parameters, shaper)
    kept = Objective(model, historical, read.loss, read.predict, "historical")
    new = Objective(model, incoming, read.loss, read.predict, "incoming")
    check_same_form(new.batches, "incoming", form_of(kept.batches[0]))
    space, g = new.step(space, parameters, shaper)
    h = kept.gradient(space, parameters)
    columns, seed = how.budget.columns, mix(how.seed, 7) % 2**31
    operator = NetworkOperator(kept, space, parameters, how.curvature, columns=columns, seed=seed)
    chosen = with_pasts(candidates_for(kept, shaper, memory, how), kept, space, parameters)
    found = diagnose_operator(
        operator, g, h, step=step, measurement=how, candidates=chosen,
        plain=plain_step(trains, g, space, parameters),
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
    spend, seed, chosen = how.budget, how.seed, candidates or Candidates()
    g = _check_gradient(g, operator.space, "g")
    h = torch.zeros_like(g) if h is None else _check_gradient(h, operator.space, "h")
    before = operator.products
    extra = chosen.products(operator.parts, plain is None)
    tick = _counter(how.progress, spend.most(operator.space) + extra)
    measured = measure(operator, g, h, eta, spend, seed, tick)
    rules: tuple[RuleForecast, ...] = ()
    if bool(g.any()):
        own = None if plain is None else _check_gradient(plain, operator.space, "plain")
        rules = forecasts(Pricing(operator, g, h, own, eta, tick), measured, chosen, seed)
    adam = None
    if spend.adam_draws and bool(g.any()):
        adam = adam_view(operator, g, spend.adam_draws, mix(seed, 3), tick)
    top = None
    if spend.eigenvalue:
        top = top_eigenvalue(operator, operator.space.d, spend.eigenvalue, mix(seed, 4))
        tick(top.products)
    found = assemble(operator, g, measured, eta, how, tick)
    spent = operator.products - before
    report = replace(
        found, seed=seed, adam=adam, top_eigenvalue=top, products=spent, rules=rules,
        candidates=chosen,
    )  # fmt: skip
    return replace(report, verdicts=tuple(verdicts(report)))


def _counter(progress: Progress | None, most: int) -> Callable[[int], None]:
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
