"""What an attachment takes hold of: gradients that can be written to, and where steps began."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from risegrad.core.optimizers import decay_kept
from risegrad.core.shards import Kept, local


def writable_gradient(tensor: Tensor) -> Tensor | None:
    """The gradient; ``torch.autograd.grad`` may have made an expanded one, many in one place."""
    grad = tensor.grad
    if grad is not None and grad.layout is torch.strided and 0 in grad.stride():
        tensor.grad = grad = grad.clone(memory_format=torch.contiguous_format)
    return grad


class Starts:
    """Where tensors stood before a step; those that cannot move need no copy."""

    def __init__(self, moving: Mapping[str, Tensor]) -> None:
        here = [local(tensor.detach()) for tensor in moving.values()]
        copies = [torch.empty_like(tensor) for tensor in here]
        if here:
            torch._foreach_copy_(copies, here)
        self._values = dict(zip(moving, copies, strict=True))

    @contextmanager
    def displaced(self, tensors: Mapping[str, Tensor], kept: Kept | None = None) -> Iterator[None]:
        """While active, these parameters hold their displacements: no third copy of them.

        ``kept``: what decoupled weight decay left of each; then it is no part of a displacement.
        """
        here = [local(tensor.detach()) for tensor in tensors.values()]
        starts = [self._values[name] for name in tensors]
        decayed: dict[int, tuple[float | Tensor, list[Tensor]]] = {}
        for name in tensors.keys() & (kept or {}).keys():
            share = (kept or {})[name]
            decayed.setdefault(id(share), (share, []))[1].append(self._values[name])
        for share, own in decayed.values():
            torch._foreach_mul_(own, share)
        if here:
            torch._foreach_sub_(here, starts)
        try:
            yield
        finally:
            if here:
                torch._foreach_add_(here, starts)


def kept_by_decay(optimizer: Optimizer, groups: Mapping[str, tuple[Tensor, int]]) -> Kept:
    """What decoupled weight decay leaves of these tensors, whose groups have these numbers.

    Without a gradient none decays.
    """
    each = [decay_kept(optimizer, group) for group in optimizer.param_groups]
    found = {name: each[n] for name, (t, n) in groups.items() if t.grad is not None}
    return {name: share for name, share in found.items() if share is not None}
