"""The pull: gradients that draw a model back to its kept answers, added before a step.

``KL(then || now)`` is what curvature cannot see, the first order: a label raised for every
question, a format that changes, drift that is there already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from risegrad.core.shards import gathered
from risegrad.keeping.examples import Group
from risegrad.keeping.looking import Look
from risegrad.memory.ranks import Ranks


def kept_loss(look: Look, groups: Iterable[Group]) -> Tensor:
    """Mean distance of the answers to these groups from the kept ones; differentiable."""
    found = [group.answers.to(look.device).distances(look.rows(group.batch)) for group in groups]
    return torch.cat(found).mean()


def pulled(loss: Callable[[], Tensor], look: Look, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of what ``loss`` gives, averaged over the processes and clipped to norm 1."""
    gradients = _gradients(loss, look, parameters)
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


def _gradients(
    loss: Callable[[], Tensor], look: Look, parameters: Sequence[Tensor]
) -> list[Tensor]:
    found: Sequence[Tensor | None]
    if not look.ranks.sharded:
        found = torch.autograd.grad(_needing(loss()), parameters, allow_unused=True)
    else:  # FSDP2 gathers and scatters in hooks of a backward pass that ends in .grad
        everyone = list(look.model.parameters())
        own = [parameter.grad for parameter in everyone]
        try:
            for parameter in everyone:
                parameter.grad = None
            _needing(loss()).backward()  # type: ignore[no-untyped-call]
            found = tuple(parameter.grad for parameter in parameters)
        finally:
            for parameter, gradient in zip(everyone, own, strict=True):
                parameter.grad = gradient
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def _needing(loss: Tensor) -> Tensor:
    if not loss.requires_grad:
        raise ValueError("no gradient reaches the trained parameters from the kept answers")
    return loss


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
