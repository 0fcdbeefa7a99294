"""What an attachment asks of an optimizer's parameters: gradients to write to, and their decay."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from risegrad.core.optimizers import decay_kept
from risegrad.core.shards import Kept


def writable_gradient(tensor: Tensor) -> Tensor | None:
    """The gradient; ``torch.autograd.grad`` may have made an expanded one, many in one place."""
    grad = tensor.grad
    if grad is not None and grad.layout is torch.strided and 0 in grad.stride():
        tensor.grad = grad = grad.clone(memory_format=torch.contiguous_format)
    return grad


def kept_by_decay(optimizer: Optimizer, groups: Mapping[str, tuple[Tensor, int]]) -> Kept:
    """What decoupled weight decay leaves of these tensors, whose groups have these numbers.

    Without a gradient none decays.
    """
    each = [decay_kept(optimizer, group) for group in optimizer.param_groups]
    found = {name: each[n] for name, (t, n) in groups.items() if t.grad is not None}
    return {name: share for name, share in found.items() if share is not None}
