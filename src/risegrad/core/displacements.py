"""What an attachment takes hold of: gradients that can be written to, and where steps began."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from risegrad.core.optimizers import decay_kept
from risegrad.core.shards import local


def writable_gradient(tensor: Tensor) -> Tensor | None:
    """The gradient; ``torch.autograd.grad`` may have made an expanded one, many in one place."""
    grad = tensor.grad
    if grad is not None and grad.layout is torch.strided and 0 in grad.stride():
        tensor.grad = grad = grad.clone(memory_format=torch.contiguous_format)
    return grad


def copy_if_moving(tensor: Tensor, anyone: bool) -> Tensor | None:
    """Whoever has no gradient stays where it is, so its step needs no memory."""
    moving = tensor.grad is not None or (anyone and tensor.requires_grad)
    return tensor.detach().clone() if moving else None


def decay(
    optimizer: Optimizer,
    tensors: Sequence[Tensor],
    olds: Sequence[Tensor | None],
    groups: Sequence[int],
) -> None:
    """Let decoupled weight decay be done already, so that it is no part of displacements.

    ``groups`` has the number of each tensor's parameter group; without a gradient none decays.
    """
    by_group: dict[int, list[Tensor]] = {}
    for tensor, old, number in zip(tensors, olds, groups, strict=True):
        if old is not None and tensor.grad is not None:
            by_group.setdefault(number, []).append(local(old))
    for number, own in by_group.items():
        kept = decay_kept(optimizer, optimizer.param_groups[number])
        if isinstance(kept, Tensor):
            torch._foreach_mul_(own, kept)
        elif kept is not None:
            torch._foreach_mul_(own, [kept] * len(own))
