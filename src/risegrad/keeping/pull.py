"""The pull: gradients that draw a model back to its kept answers, added before a step.

``KL(then || now)`` is what curvature cannot see, the first order: a label raised for every
question, a format that changes, drift that is there already.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from risegrad.core.shards import gathered
from risegrad.keeping.examples import Group
from risegrad.keeping.looking import Look
from risegrad.memory.ranks import Ranks


def kept_losses(look: Look, groups: Sequence[Group], passes: int = 0) -> Iterator[Tensor]:
    """The mean distance of the answers to these groups from the kept ones, each group's part of it.

    ``passes``: how many there must be at least.
    """
    total = sum(len(group.answers.values) for group in groups)
    for group in groups:
        yield group.answers.to(look.device).distances(look.rows(group.batch)).sum() / total
    for _ in range(passes - len(groups)):
        yield 0 * look.rows(groups[0].batch).sum()


def pulled(losses: Iterable[Tensor], look: Look, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of their sum, averaged over the processes and clipped to norm 1.

    One loss at a time, so that no more than one group's activations are there.
    """
    gradients = _gradients(losses, look, parameters)
    if not look.ranks.sharded:
        gradients = _averaged(gradients, look.ranks)
    norm = gathered(get_total_norm(gradients))
    factor = torch.where(norm.isfinite(), 1 / norm.clamp(min=1), 0)
    there = {g.device: factor.to(g.device) for g in gradients}
    # Where the pull is not finite there is none; zero times infinity would not be zero.
    return [torch.where(there[g.device] > 0, g * there[g.device], 0) for g in gradients]


def add(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor], strength: float, optimizer: Optimizer
) -> None:
    """Add to the gradients that a step is about to use; where there is none, none is made.

    A fused optimizer under a GradScaler sees gradients that are still scaled.
    """
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    pairs = [(p.grad, g) for p, g in zip(parameters, gradients, strict=True) if p.grad is not None]
    if sparse := [grad for grad, _ in pairs if grad.layout is not torch.strided]:
        raise RuntimeError(
            f"a pull is dense, got a gradient that is {sparse[0].layout}: use sparse=False in the "
            "embedding, or pull=0"
        )
    if not pairs:
        return
    own, pull = ([*side] for side in zip(*pairs, strict=True))
    with torch.no_grad():
        if scale is not None:
            pull = [gradient * scale.to(gradient.device) for gradient in pull]
        torch._foreach_add_(own, pull, alpha=strength)


def agreed(number: float, look: Look) -> float:
    """The mean over the processes, so that all go on with the same."""
    message = torch.tensor([number], dtype=torch.float64, device=look.device)
    look.ranks.add(message)
    return float(message) / look.ranks.count


SCALE = 2.0**12
"""Gradients that are computed in float16 would be rounded to zero without; exact in all others."""


def _gradients(losses: Iterable[Tensor], look: Look, parameters: Sequence[Tensor]) -> list[Tensor]:
    found: list[Tensor | None] = [None] * len(parameters)
    sharded = [*look.model.parameters()]  # a forward pass puts whole ones in their place
    for loss in losses:
        if not loss.requires_grad:
            raise ValueError("the kept answers do not depend on any trained parameter")
        each: Sequence[Tensor | None]
        if look.ranks.sharded:
            each = _through_hooks(SCALE * loss, parameters, sharded)
        else:  # not in .grad, where DDP and optimizers that step while going back have hooks
            each = torch.autograd.grad(SCALE * loss, parameters, allow_unused=True)
        pairs = zip(found, each, strict=True)
        found = [g if sum_ is None else sum_ if g is None else sum_ + g for sum_, g in pairs]
    both = zip(found, parameters, strict=True)
    return [torch.zeros_like(p) if g is None else g / SCALE for g, p in both]


def _through_hooks(
    loss: Tensor, parameters: Sequence[Tensor], everyone: Sequence[Tensor]
) -> Sequence[Tensor | None]:
    """FSDP2 gathers and scatters in hooks of a backward pass that ends in ``.grad``."""
    own = [parameter.grad for parameter in everyone]
    try:
        for parameter in everyone:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        return [parameter.grad for parameter in parameters]
    finally:
        for parameter, gradient in zip(everyone, own, strict=True):
            parameter.grad = gradient


def _averaged(gradients: list[Tensor], ranks: Ranks) -> list[Tensor]:
    """Means over the processes, in one message for each dtype and device."""
    if ranks.group is None:
        return gradients
    found = list(gradients)
    kinds = {(g.dtype, g.device) for g in gradients}
    for kind in sorted(kinds, key=str):
        here = [i for i, g in enumerate(gradients) if (g.dtype, g.device) == kind]
        message = torch.cat([gradients[i].reshape(-1) for i in here]) / ranks.count
        ranks.add(message)
        parts = torch.split(message, [gradients[i].numel() for i in here])
        for i, part in zip(here, parts, strict=True):
            found[i] = part.view(gradients[i].shape)
    return found


EVERY = 4
"""Steps between two measurements of the drift. One costs a forward pass over the examples that are
held out: with the default of 128 examples about a fifth of what pulling at every step costs."""
STRENGTH = 4.0
"""Of the pull to begin with; without a budget also at the end. Decision 12 says why."""
WEAKEST, STRONGEST = 0.1, 30.0


def strength_after(strength: float, drift: float, budget: float) -> float:
    """Stronger where more was lost than the budget allows, weaker where less was.

    ``strength exp((drift / budget - 1) / 2)``, between 0.1 and 30.

    >>> strength_after(1.0, drift=0.05, budget=0.05)
    1.0
    >>> round(strength_after(1.0, drift=0.15, budget=0.05), 3)
    2.718
    >>> strength_after(1.0, drift=9.0, budget=0.05)
    30.0
    """
    if math.isnan(drift):
        return STRONGEST
    change = math.exp(min((drift / budget - 1) / 2, math.log(STRONGEST / WEAKEST)))
    return min(max(strength * change, WEAKEST), STRONGEST)
