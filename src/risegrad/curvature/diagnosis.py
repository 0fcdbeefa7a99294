"""``diagnose``: from a model, what it must keep and what it is to learn, to a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from risegrad.checks import check_number
from risegrad.curvature.adam import adam_view
from risegrad.curvature.assemble import assemble
from risegrad.curvature.budget import Budget
from risegrad.curvature.forms import Predict, check_same_form, form_of
from risegrad.curvature.measure import measure
from risegrad.curvature.objective import Batches, Loss, Objective
from risegrad.curvature.operators import Kind, NetworkOperator, Operator
from risegrad.curvature.report import Diagnosis
from risegrad.curvature.space import Space, make_space, trained_parameters
from risegrad.curvature.spectrum import top_eigenvalue
from risegrad.curvature.verdicts import verdicts
from risegrad.draws import mix
from risegrad.shapers import Rise

__all__ = ["Diagnosis", "diagnose", "diagnose_operator"]

Progress = Callable[[int, int], None]
"""Called with the products spent and the most that there will be."""


def diagnose(
    model: nn.Module,
    historical: Batches,
    incoming: Batches,
    *,
    rise: Rise | None = None,
    step: float = 1.0,
    curvature: Kind = "ggn",
    loss: Loss | None = None,
    predict: Predict | None = None,
    damping: float | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Diagnosis:
    """What one step on ``incoming`` would do to the loss on ``historical``, rule by rule.

    Both are lists (or loaders) of batches of one form: pairs ``(inputs, target)`` or mappings with
    ``labels`` as transformers takes them; ``predict(model, batch) -> (prediction, target)`` reads
    any other. ``rise`` is the shaper you would attach: its ``q``, ``blocks`` and ``exempt`` are
    used. ``step`` is the learning rate of plain descent; damage grows with its square.

    The model is measured in eval mode (no dropout, running batch statistics), changed in nothing,
    and all numbers are a pure function of the model, the batches and ``seed``.
    """
    shaper = rise or Rise()
    parameters = trained_parameters(model, shaper.exempt)
    space = make_space(parameters, shaper)
    kept = Objective(model, historical, loss, predict, "historical")
    new = Objective(model, incoming, loss, predict, "incoming")
    check_same_form(new.batches, "incoming", form_of(kept.batches[0]))
    spend = budget or Budget()
    space, g = new.step(space, parameters, shaper)
    h = kept.gradient(space, parameters)
    operator = NetworkOperator(
        kept, space, parameters, curvature, columns=spend.columns, seed=mix(seed, 7) % 2**31
    )
    found = diagnose_operator(
        operator, g, h, step=step, damping=damping, budget=spend, seed=seed, progress=progress,
        positive=curvature != "hessian",
    )  # fmt: skip
    return replace(
        found, curvature=curvature, historical_loss=kept.value(), incoming_loss=new.value()
    )


def diagnose_operator(
    operator: Operator,
    g: Tensor,
    h: Tensor | None = None,
    *,
    step: float = 1.0,
    damping: float | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    positive: bool = True,
) -> Diagnosis:
    """The same for any operator and given gradients (flat, in the order of its space).

    ``positive`` says that the curvature is positive semidefinite.
    """
    spend, eta = budget or Budget(), check_number("step", step, above=0)
    if damping is not None:
        check_number("damping", damping, above=0)
    g = _check_gradient(g, operator.space, "g")
    h = torch.zeros_like(g) if h is None else _check_gradient(h, operator.space, "h")
    before = operator.products
    tick = _counter(progress, spend.most(operator.space))
    measured = measure(operator, g, h, eta, spend, seed, tick)
    adam = None
    if spend.adam_draws and bool(g.any()):
        adam = adam_view(operator, g, spend.adam_draws, mix(seed, 3), tick)
    top = None
    if spend.eigenvalue:
        top = top_eigenvalue(operator, operator.space.d, spend.eigenvalue, mix(seed, 4))
        tick(top.products)
    found = assemble(operator, g, measured, eta, damping, spend, positive, tick)
    spent = operator.products - before
    report = replace(found, seed=seed, adam=adam, top_eigenvalue=top, products=spent)
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
