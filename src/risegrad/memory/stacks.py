"""Layers of one shape, filtered together: a handful of operations for all of them.

Nothing here reads a number of the device: a step is put in the queue and the host goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from risegrad.core.arithmetic import norm
from risegrad.core.shards import (
    Kept,
    Reduction,
    WholeStep,
    gathered,
    is_dtensor,
    local_part,
    put,
)
from risegrad.memory.filters import Filters, SideStack, Whole, filters_of, kind_of
from risegrad.memory.sides import Way

LARGEST = {"cpu": 1 << 18}
"""Elements of a stack, so that it stays in the caches; ``FAR`` where launches cost more."""
FAR = 1 << 20


class Begun(NamedTuple):
    """A member as a step begins: its filters but for a number ``size`` for each, its values."""

    left: Filters
    right: Filters
    size: Tensor
    starts: Tensor | None


class Products(NamedTuple):
    """What a member adds to the matching of progress."""

    here: Tensor
    """``<g, U>``, ``<g, U'>`` and ``|g|^2``, of a sharded gradient this process's part."""
    squares: Tensor
    """``|U|^2``"""
    reduction: Reduction | None = None


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

    def values(self) -> Tensor:
        """All of them, in a stack."""
        if self.sharded:
            return gathered(self.tensors[0])[None]
        return torch.stack(self.tensors)

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
            x = self.values().to(self.dtype).sub_(starts)
            for number, name in enumerate(self.names):
                if name not in step.tensors:
                    x[number] = 0
        self._leave_out(x, step.left_out)
        return x

    def filtered(self, x: Tensor, begun: Begun, left_out: Mapping[str, int]) -> Tensor:
        """``P x P`` but for the number that is left out."""
        found = begun.right.right_(begun.left.left(self._matrices(x)))
        found = (found.mT.contiguous() if self._turns(x) else found).reshape(x.shape)
        self._leave_out(found, left_out)
        return found

    def put(self, step: WholeStep, x: Tensor) -> None:
        """Write each into its tensor, but for rows that are left out."""
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

    def products(
        self, step: WholeStep, x: Tensor, t: Tensor, units: Units, sound: Tensor
    ) -> Products:
        """Of the gradients with a step and its filtered form, over the layers that are sound.

        The step itself is used up: memory that is new to a process costs more than these sums.
        """
        squares = torch.where(sound, (units.x * _wide(norm(x.flatten(1)))).square(), 0).sum()
        reduction, g, of_g = None, x, units.x
        if step.gradients is not None:
            if not any(name in step.gradients for name in self.names):
                return Products(squares.new_zeros(3), squares)
            of_g = torch.ones_like(units.x)
            if self.sharded:
                part = local_part(self.names[0], step.gradients[self.names[0]])
                reduction = part.reduction
                if part.tensor.numel() == 0:  # it still joins the sum
                    return Products(squares.new_zeros(3), squares, reduction)
                x, t = (part.of(y[0])[None] for y in (x, t))
                g = part.tensor[None].to(self.dtype, copy=True)
            else:
                g = self._stacked(step.gradients)
        length = _wide(norm(g.flatten(1))) * of_g
        plain = length.square() if g is x else _summed(x.mul_(g)) * units.x
        filtered = _summed(g.mul_(t)) * units.t * of_g
        each = torch.stack([plain, filtered, length.square()])
        fine = sound & each.isfinite().all(0)
        return Products(torch.where(fine, each, 0).sum(1), squares, reduction)

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


class Units(NamedTuple):
    """What a step and its filtered form are to be multiplied by: so squares of their numbers are
    within float32."""

    x: Tensor
    t: Tensor


@dataclass(frozen=True)
class Turned:
    """A filtered step of a member, at the norm of the plain one."""

    member: Member
    begun: Begun
    x: Tensor | None
    """None: it is in its tensors already, because it is too large to be held twice."""
    scale: Tensor

    def finish(self, step: WholeStep, factor: Tensor | None) -> None:
        """Lengthen it by the factor, and let the parameters stand where it leads."""
        if self.x is None:
            if factor is not None:
                _lengthen(step, self.member.names, factor)
            return
        scale = self.scale if factor is None else self.scale * factor.to(self.scale)
        scale = _beside(self.x, scale)
        starts = self.begun.starts
        self.member.put(
            step, self.x.mul_(scale) if starts is None else starts.addcmul_(self.x, scale)
        )


def _lengthen(step: WholeStep, names: Sequence[str], factor: Tensor) -> None:
    parts = [
        local_part(name, step.tensors[name]).after(step.left_out.get(name, 0)).tensor
        for name in names
        if name in step.tensors
    ]
    torch._foreach_mul_(parts, factor.to(parts[0].device, torch.float32, non_blocking=True))


@dataclass(frozen=True)
class Stack:
    """Layers of one shape. What a layer's members have in common is the norm that is matched."""

    members: tuple[Member, ...]

    def turn(
        self, step: WholeStep, begun: Sequence[Begun], measured: bool
    ) -> Iterator[tuple[Turned, Products | None]]:
        """Filter what is there, at the norm that it had, layer by layer.

        What is not finite stays in its own tensor: it has no part in any norm or product.
        """
        found = [
            (member, now, member.taken(step, now.starts))
            for member, first in zip(self.members, begun, strict=True)
            if any(name in step.tensors for name in member.names)
            for now in [member.decayed(first, step.kept)]
        ]
        if not found:
            return
        unit = _taken_out([x for _, _, x in found])
        turned = [member.filtered(x, now, step.left_out) for member, now, x in found]
        before = torch.stack([norm(x.flatten(1)) for _, _, x in found])
        after = torch.stack(
            [norm(t.flatten(1)) * now.size for (_, now, _), t in zip(found, turned, strict=True)]
        )
        sound = before.isfinite() & after.isfinite()
        ratio = _ratio(*(vector_norm(torch.where(sound, n, 0), dim=0) for n in (before, after)))
        for (member, now, x), t, fine in zip(found, turned, sound, strict=True):
            scale = ratio * now.size * unit
            units = Units(_wide(unit), _wide(scale))
            products = member.products(step, x, t, units, fine) if measured else None
            if member.small:
                yield Turned(member, now, t, scale), products
            else:
                member.put(step, t.mul_(_beside(t, scale)))
                yield Turned(member, now, None, scale), products


class Stacks:
    """All covered parameters, layer by layer, and layers of one shape together."""

    def __init__(
        self, ways: Mapping[str, Way], tensors: Mapping[str, Tensor], damping: float
    ) -> None:
        self._damping = damping
        self.stacks = [*_stacks(ways, tensors, damping)]
        self.members = [member for stack in self.stacks for member in stack.members]
        watched = _others(ways, tensors)
        self._pairs = [m for m in self.members if m.left is None]
        self._pairs += [m for s in _stacks(*watched, damping) for m in s.members]
        self._others = {tensor: ways[n].other for n, tensor in tensors.items() if n in ways}
        self._others |= {watched[1][n]: way.other for n, way in watched[0].items()}

    @property
    def large(self) -> list[str]:
        """Parameters that hold their displacements while these are turned."""
        return [name for member in self.members if not member.small for name in member.names]

    def begin(self, moving: Mapping[str, Tensor] | None) -> list[list[Begun]]:
        """The filters of all members and, where displacements are turned, their values."""
        values = [member.values() for member in self._pairs]
        small = self._small_sides(values)
        found: dict[int, Begun] = {}
        for member in self.members:
            if member.left is None:
                continue
            size = member.left.size * member.right.size
            found[id(member)] = Begun(member.left.filters, member.right.filters, size, None)
        for member, own, side in zip(self._pairs, values, small, strict=True):
            starts = None if moving is None or not member.small else own
            found[id(member)] = Begun(side, member.right.filters, member.right.size, starts)
        return [[found[id(member)] for member in stack.members] for stack in self.stacks]

    def _small_sides(self, values: Sequence[Tensor]) -> list[Whole]:
        """Of each LoRA matrix the side that follows the other one, all in one go."""
        seen = [m.seen(own) for m, own in zip(self._pairs, values, strict=True)]
        turned = {
            kind: filters_of(torch.cat([s for s in seen if _form(s) == kind]), self._damping)
            for kind in dict.fromkeys(map(_form, seen))
        }
        orders = self._orders_of(seen)
        return [
            Whole(turned[_form(s)].index_select(0, order))
            for s, order in zip(seen, orders, strict=True)
        ]

    def _orders_of(self, seen: Sequence[Tensor]) -> list[Tensor]:
        """Where the others of each member's matrices stand among all of their form."""
        if not self._orders:
            places: dict[object, int] = {}
            counts: Counter[object] = Counter()
            for member, s in zip(self._pairs, seen, strict=True):
                for tensor in member.tensors:
                    places[_form(s), id(tensor)] = counts[_form(s)]
                    counts[_form(s)] += 1
            for member, s in zip(self._pairs, seen, strict=True):
                own = [places[_form(s), id(self._others[tensor])] for tensor in member.tensors]
                self._orders.append(torch.tensor(own, device=s.device))
        return self._orders

    @cached_property
    def _orders(self) -> list[Tensor]:
        return []


def _form(x: Tensor) -> tuple[object, ...]:
    return x.shape[1:], x.dtype, x.device


def _others(
    ways: Mapping[str, Way], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Way], dict[str, Tensor]]:
    """Of LoRAs of which one matrix is not shaped (frozen, of another optimizer), that one."""
    there = {id(tensors[name]) for name in ways}
    found = {
        f"{name} (other)": (replace(way, other=tensors[name], first=not way.first), way.other)
        for name, way in ways.items()
        if way.other is not None and id(way.other) not in there
    }
    return {n: way for n, (way, _) in found.items()}, {n: t for n, (_, t) in found.items()}


def _stacks(
    ways: Mapping[str, Way], tensors: Mapping[str, Tensor], damping: float
) -> Iterator[Stack]:
    layers: dict[str, list[str]] = {}
    for name, way in ways.items():
        layers.setdefault(way.group if way.other is None else name, []).append(name)
    alike: dict[object, list[list[str]]] = {}
    for names in layers.values():
        kind = tuple(_kind(name, ways[name], tensors[name]) for name in names)
        alike.setdefault(kind, []).append(names)
    for some in alike.values():
        most = LARGEST.get(tensors[some[0][0]].device.type, FAR)
        several = max(1, most // max(tensors[name].numel() for name in some[0]))
        for first in range(0, len(some), several):
            yield _stack(some[first : first + several], ways, tensors, damping)


def _stack(
    layers: Sequence[Sequence[str]],
    ways: Mapping[str, Way],
    tensors: Mapping[str, Tensor],
    damping: float,
) -> Stack:
    stacked: dict[object, SideStack] = {}  # a weight and its bias have the same outputs
    members = []
    for names in zip(*layers, strict=True):
        own = tuple(tensors[name] for name in names)
        way = ways[names[0]]
        wide = torch.float64 in (own[0].dtype, None if way.other is None else way.other.dtype)
        dtype = torch.float64 if wide else torch.float32
        lora, turned = way.other is not None, way.transposed
        rights, lefts = [ways[n].right for n in names], [ways[n].left for n in names]
        if lora and not way.first:
            rights, turned = lefts, True
        right, left = (
            stacked.setdefault(tuple(map(id, sides)), SideStack(sides, damping, dtype))
            for sides in (rights, lefts)
        )
        members.append(
            Member(names, own, right, None if lora else left, turned, dtype, is_dtensor(own[0]))
        )
    return Stack(tuple(members))


def _kind(name: str, way: Way, tensor: Tensor) -> tuple[object, ...]:
    sides = [way.left, way.right]
    if way.other is not None:
        sides = [way.right if way.first else way.left]
    # One that is sharded is alone, so that one is whole at a time.
    alone = name if is_dtensor(tensor) else None
    other = None if way.other is None else (way.first, way.other.dtype)
    like = tensor.shape, tensor.dtype, tensor.device, way.transposed
    return *like, *map(kind_of, sides), other, alone


def _taken_out(parts: Sequence[Tensor]) -> Tensor:
    """Divide each layer by its largest number (or by 1), which is returned."""
    flat = [x.flatten(1) for x in parts]
    largest = torch.stack([torch.maximum(x.amax(1), -x.amin(1)) for x in flat])
    unit = torch.where(largest.isfinite(), largest, 0).amax(0)
    unit = torch.where(unit > 0, unit, 1)
    for x in parts:
        x.div_(_beside(x, unit))
    return unit


def _beside(x: Tensor, numbers: Tensor) -> Tensor:
    return numbers.view(-1, *[1] * (x.ndim - 1))


def _summed(x: Tensor) -> Tensor:
    return _wide(x.flatten(1).sum(1))


def _ratio(wanted: Tensor, found: Tensor) -> Tensor:
    """What to multiply by; a step of zero stays one."""
    return torch.where(found > 0, wanted / found, 1)


def _wide(x: Tensor) -> Tensor:
    # Products of two numbers that float32 holds; Apple's GPUs have no float64.
    return x if x.device.type == "mps" else x.double()


def _on(device: torch.device, shares: Sequence[float | Tensor]) -> list[float] | list[Tensor]:
    """Numbers as foreach takes them: all floats, or all tensors."""
    floats = [share for share in shares if not isinstance(share, Tensor)]
    if len(floats) == len(shares):
        return floats
    return [torch.as_tensor(share, device=device) for share in shares]
