"""Keep, reverse or drop a gradient, whichever its own loss likes best (ZeroFlow's "conserve")."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_int, check_number
from risegrad.core.parameter_names import Named
from risegrad.core.undisturbed import Closure, LossEvaluator
from risegrad.zeroth_order.line_walk import Restore, walking
from risegrad.zeroth_order.perturbed import perturbed


@dataclass(frozen=True)
class Conserved:
    """The three losses and what the gradients were multiplied by."""

    forward: float
    """The loss at ``theta - lr g``."""
    stay: float
    """The loss at ``theta``."""
    back: float
    """The loss at ``theta + lr g``."""
    weight: float
    """1, 0 or -1 for the lowest of the three in this order; NaN if none of them is finite."""


@torch.no_grad()
def conserve(
    closure: Closure,
    params: Named,
    *,
    lr: float,
    seed: int = 0,
    step: int = 0,
    restore: Restore = "copy",
    model: nn.Module | None = None,
) -> Conserved:
    """Multiply the gradients by 1, 0 or -1, so that SGD with ``lr`` goes where the loss is lowest.

    Call it after ``spsa`` with the same ``seed`` and ``step``: the three evaluations then see the
    random numbers that the estimate saw. Exact for plain SGD with this ``lr``; momentum and weight
    decay come on top.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> weight.grad = torch.tensor([-2.0])  # the wrong way for a loss of weight ** 2
    >>> conserve(lambda: (weight ** 2).sum(), [("weight", weight)], lr=0.1).weight
    -1.0
    >>> weight.grad
    tensor([2.])
    """
    lr = check_number("lr", lr, above=0)
    tensors = perturbed(params).tensors
    gradients = _gradients(tensors)
    along = gradients.__getitem__
    evaluator = LossEvaluator(model, check_int("seed", seed), check_int("step", step))
    with walking(tensors, restore) as walk:
        stay = evaluator.loss(closure)
        walk.to(-lr, along)
        forward = evaluator.loss(closure)
        walk.to(lr, along)
        back = evaluator.loss(closure)
    weight = _best(forward, stay, back)
    for gradient in gradients:
        gradient.mul_(weight)
    return Conserved(forward, stay, back, weight)


def _best(forward: float, stay: float, back: float) -> float:
    # On a tie the step is taken, and a step back only if it is better than staying.
    finite = [
        (loss, -weight)
        for loss, weight in ((forward, 1.0), (stay, 0.0), (back, -1.0))
        if math.isfinite(loss)
    ]
    return -min(finite)[1] if finite else math.nan


def _gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    present = [tensor.grad for tensor in tensors if tensor.grad is not None]
    if len(present) < len(tensors):
        raise ValueError(
            f"params must all have a gradient, got {len(tensors) - len(present)} without: "
            "call spsa first"
        )
    return present
