"""One parameter of each of many layers, as one stack of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from risegrad.core.arithmetic import norm
from risegrad.core.shards import Kept, Reduction, WholeStep, gathered, local_part, put
from risegrad.memory.filters import Filters, SideStack


class Begun(NamedTuple):
    """A member as a step begins: its filters but for a number ``size`` for each, its values."""

    left: Filters
    right: Filters
    size: Tensor
    starts: Tensor | None


@dataclass(frozen=True)
class Member:
    """One parameter of each layer: all weights, all biases, all ``A`` of a LoRA...

    Both matrices of a LoRA are seen as (r, d), ``B`` transposed: the left side then is the one that
    moves with the other matrix, and products of many narrow matrices are several times as fast.
    """

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    right: SideStack
    left: SideStack | None
    """None: of a LoRA."""
    transposed: bool
    dtype: torch.dtype
    sharded: bool

    @property
    def small(self) -> bool:
        """Whether it can be held a second time until the factor of a step is known."""
        return self.left is None and not self.sharded

    def values(self, stay: bool) -> Tensor:
        """All of them, in a stack; ``stay``: until the step is done."""
        if self.sharded:
            return gathered(self.tensors[0])[None]
        return torch.stack(self.tensors, out=self._starts if stay else None)

    def seen(self, values: Tensor) -> Tensor:
        """``B'DB`` or ``A S A'``: what the other matrix of a LoRA moves through."""
        return self.right.seen_through(self._matrices(values).to(self.dtype))

    def decayed(self, begun: Begun, kept: Kept | None) -> Begun:
        """Where steps begin after decoupled weight decay, which rounds as in the optimizer."""
        starts = begun.starts
        if starts is None:
            return begun
        if kept:
            shares = [kept.get(name, 1.0) for name in self.names]
            if all(share is shares[0] for share in shares):
                starts.mul_(shares[0])
            else:
                torch._foreach_mul_([*starts.unbind()], _on(starts.device, shares))
        return begun._replace(starts=starts.to(self.dtype))

    def taken(self, step: WholeStep, starts: Tensor | None) -> Tensor:
        """A copy of all steps, with zeros for what is not there or takes no part."""
        if starts is None:
            x = self._stacked(step.tensors)
        else:
            x = self.values(stay=False).to(self.dtype).sub_(starts)
            for number, name in enumerate(self.names):
                if name not in step.tensors:
                    x[number] = 0
        self._leave_out(x, step.left_out)
        return x

    def filtered(self, x: Tensor, begun: Begun, left_out: Mapping[str, int]) -> Tensor:
        """``P x P`` but for the number that is left out."""
        matrices, turns = self._matrices(x), self._turns(x)
        room = self._filtered.view(x.flatten(2).shape) if self.small else None
        found = begun.right.right_(begun.left.left(matrices, None if turns else room))
        if turns:
            found = found.mT.contiguous() if room is None else room.copy_(found.mT)
        found = found.view(x.shape)
        self._leave_out(found, left_out)
        return found

    def products(self, step: WholeStep, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``<g, x>``, ``<g, t>`` and ``|g|``, of a sharded gradient this process's part.

        The step itself is used up: memory that is new to a process costs more than these sums.
        """
        if step.gradients is None:
            length = norm(x.flatten(1))
            return length.square(), _summed(x.mul_(t)), length
        if not any(name in step.gradients for name in self.names):
            none = x.new_zeros(len(x))
            return none, none, none
        if self.sharded:
            part = local_part(self.names[0], step.gradients[self.names[0]])
            x, t = (part.of(y[0])[None] for y in (x, t))
            g = part.tensor[None].to(self.dtype, copy=True)
        else:
            g = self._stacked(step.gradients)
        length = norm(g.flatten(1))
        return _summed(x.mul_(g)), _summed(g.mul_(t)), length

    def reduction(self, step: WholeStep) -> Reduction | None:
        """The processes over which products must be summed."""
        first = self.names[0]
        if not self.sharded or step.gradients is None or first not in step.gradients:
            return None
        return local_part(first, step.gradients[first]).reduction

    def put(self, step: WholeStep, begun: Begun, t: Tensor, scale: Tensor) -> None:
        """Let each tensor stand where its filtered step leads; rows that are left out stay."""
        scale = beside(t, scale.to(t))
        starts = begun.starts
        x = t.mul_(scale) if starts is None else torch.addcmul(starts, t, scale)
        targets, pieces = [], []
        for name, piece in zip(self.names, x.unbind(), strict=True):
            tensor, rows = step.tensors.get(name), step.left_out.get(name, 0)
            if tensor is None:
                continue
            if self.sharded:
                if rows:
                    piece[:rows] = gathered(tensor)[:rows]
                put(name, tensor, piece)
            else:
                targets.append(tensor[rows:] if rows else tensor)
                pieces.append(piece[rows:] if rows else piece)
        if targets:
            torch._foreach_copy_(targets, pieces)

    def lengthen(self, step: WholeStep, factor: Tensor) -> None:
        """Multiply steps that are in their tensors."""
        parts = [
            local_part(name, step.tensors[name]).after(step.left_out.get(name, 0)).tensor
            for name in self.names
            if name in step.tensors
        ]
        if parts:
            number = factor.to(parts[0].device, torch.float32, non_blocking=True)
            torch._foreach_mul_(parts, number)

    # Memory that is new to a process costs as much as the arithmetic of a step: these two stay.
    @cached_property
    def _starts(self) -> Tensor:
        return self.tensors[0].new_empty((len(self.tensors), *self.tensors[0].shape))

    @cached_property
    def _filtered(self) -> Tensor:
        return self._starts.new_empty(self._starts.shape, dtype=self.dtype)

    def _stacked(self, tensors: Mapping[str, Tensor]) -> Tensor:
        own = [tensors.get(name) for name in self.names]
        there = [t if t is None or t.layout is torch.strided else t.to_dense() for t in own]
        none = torch.zeros_like(next(t for t in there if t is not None))
        whole = [none if t is None else t for t in there]
        if self.sharded:  # one alone; ``sub_`` and ``div_`` need a copy
            return gathered(whole[0])[None].to(self.dtype, copy=True)
        return torch.stack(whole).to(self.dtype)

    def _matrices(self, x: Tensor) -> Tensor:
        x = x[..., None] if x.ndim == 2 else x.flatten(2)
        return x.mT if self._turns(x) else x

    def _turns(self, x: Tensor) -> bool:
        return self.transposed and x.ndim > 2

    def _leave_out(self, x: Tensor, left_out: Mapping[str, int]) -> None:
        for number, name in enumerate(self.names) if left_out else ():
            if rows := left_out.get(name, 0):
                x[number, :rows] = 0


def beside(x: Tensor, numbers: Tensor) -> Tensor:
    """One number for each of a stack, in a shape to multiply it with."""
    return numbers.view(-1, *[1] * (x.ndim - 1))


def _summed(x: Tensor) -> Tensor:
    return x.flatten(1).sum(1)


def _on(device: torch.device, shares: Sequence[float | Tensor]) -> list[float] | list[Tensor]:
    """Numbers as foreach takes them: all floats, or all tensors."""
    floats = [share for share in shares if not isinstance(share, Tensor)]
    if len(floats) == len(shares):
        return floats
    return [torch.as_tensor(share, device=device) for share in shares]
