"""Layers of one shape, filtered together: a handful of operations for all of them.

Nothing here reads a number of the device: a step is put in the queue and the host goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.linalg import vector_norm

from risegrad.core.arithmetic import dots, norm
from risegrad.core.shards import Reduction, WholeStep, gathered, is_dtensor, local_part, put
from risegrad.memory.factor import Factor, Side
from risegrad.memory.sides import Way


class Filters(Protocol):
    """Symmetric matrices, one for each of a stack of matrices."""

    def left(self, x: Tensor) -> Tensor:
        """``P x``"""

    def right(self, x: Tensor) -> Tensor:
        """``x P``"""


@dataclass(frozen=True)
class Whole(Filters):
    """Written out."""

    matrices: Tensor

    def left(self, x: Tensor) -> Tensor:
        return self.matrices @ x

    def right(self, x: Tensor) -> Tensor:
        return x @ self.matrices


@dataclass(frozen=True)
class NearIdentity(Filters):
    """``I + V diag(w) V'``"""

    vectors: Tensor
    weights: Tensor

    def left(self, x: Tensor) -> Tensor:
        seen = self.vectors.mT @ x
        return torch.baddbmm(x, self.vectors, seen.mul_(self.weights[..., None]))

    def right(self, x: Tensor) -> Tensor:
        seen = x @ self.vectors
        return torch.baddbmm(x, seen.mul_(self.weights[:, None]), self.vectors.mT)


@dataclass(frozen=True)
class Scales(Filters):
    """Diagonal ones."""

    values: Tensor

    def left(self, x: Tensor) -> Tensor:
        return x * self.values[..., None]

    def right(self, x: Tensor) -> Tensor:
        return x * self.values[:, None]


class SideStack:
    """The sides of as many parameters: all factors of one size and rank, or all diagonals."""

    def __init__(self, sides: Sequence[Side], damping: float, dtype: torch.dtype) -> None:
        self._sides, self._damping, self._dtype = sides, damping, dtype

    @cached_property
    def filters(self) -> Filters:
        """``(F/t + rho)^-1 / size``"""
        first, rho = self._sides[0], self._damping
        if isinstance(first, Factor) and first.rank is None:
            return Whole(self._joined([s.whole_filter(rho, -1.0) for s in self._factors]))
        if isinstance(first, Factor):
            return NearIdentity(self._vectors, self._gains(self._values) / self.size[:, None] - 1)
        return Scales(self._gains(self._joined([s.tensors()["diagonal"] for s in self._sides])))

    @cached_property
    def size(self) -> Tensor:
        """What the filters leave out: the filter off the eigenvectors of a low-rank factor."""
        if isinstance(self._sides[0], Factor) and self._sides[0].rank is not None:
            return self._gains(self._rest[:, None])[:, 0]
        return torch.ones(len(self._sides), dtype=self._dtype, device=self._sides[0].like.device)

    def seen_through(self, rows: Tensor) -> Tensor:
        """``R F R'`` for matrices ``R`` (n, r, dim)."""
        if self._factors[0].rank is None:
            return rows @ self._matrices @ rows.mT
        seen = rows @ self._vectors
        rest: Tensor = self._rest[:, None, None] * (rows @ rows.mT)
        return rest.baddbmm_(seen * (self._values - self._rest[:, None])[:, None], seen.mT)

    @property
    def _factors(self) -> list[Factor]:
        return [side for side in self._sides if isinstance(side, Factor)]

    @cached_property
    def _vectors(self) -> Tensor:
        return self._joined([factor.eigen.vectors for factor in self._factors])

    @cached_property
    def _values(self) -> Tensor:
        return self._joined([factor.eigen.values for factor in self._factors])

    @cached_property
    def _rest(self) -> Tensor:
        return self._joined([factor.eigen.rest for factor in self._factors])

    @cached_property
    def _matrices(self) -> Tensor:
        return self._joined(
            [factor.matrix for factor in self._factors if factor.matrix is not None]
        )

    def _gains(self, values: Tensor) -> Tensor:
        """``1/(f/t + rho)`` of eigenvalues (n, k); a side that is zero has no mean to divide by."""
        means = [side.mean or 1.0 for side in self._sides]
        mean = torch.tensor(means, dtype=torch.float64).to(values)[:, None]
        return 1 / (values / mean + self._damping)

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        # One layer alone, such as a large one, is not copied.
        joined = tensors[0][None] if len(tensors) == 1 else torch.stack([*tensors])
        return joined.to(self._dtype)


def kind_of(side: Side) -> tuple[object, ...]:
    """What sides of one stack have in common."""
    rank = side.rank if isinstance(side, Factor) else None
    return type(side), side.dim, rank, side.like.dtype, side.like.device


def filters_of(curvature: Tensor, damping: float) -> Whole:
    """``(F/t + rho)^-1`` of small matrices ``F`` (n, r, r) that change in every step.

    By an inverse, which a device does for all at once and without telling the host how it went. A
    damping within the rounding of ``F/t`` is lifted above it: there, no inverse is to be trusted.
    """
    size = curvature.shape[-1]
    mean = curvature.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    rho = max(damping, 8 * size * torch.finfo(curvature.dtype).eps)
    eye = torch.eye(size, dtype=curvature.dtype, device=curvature.device)
    damped = torch.where(mean > 0, curvature / mean, curvature).add_(eye, alpha=rho)
    return Whole(torch.linalg.inv_ex(damped).inverse)


LARGEST = 1 << 20
"""Elements of a parameter in a stack: larger ones would gain nothing and leave the caches."""


class Now(NamedTuple):
    """The filters of a member as a step begins: a number ``size`` for each is left out of them."""

    left: Filters
    right: Filters
    size: Tensor


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

    Both matrices of a LoRA are laid as (r, d): the side that moves is then the left one, and
    products of many narrow matrices are several times as fast.
    """

    names: tuple[str, ...]
    ways: tuple[Way, ...]
    shape: torch.Size
    left: SideStack
    right: SideStack
    dtype: torch.dtype
    sharded: bool

    def now(self, damping: float) -> Now:
        """Its filters at present values."""
        way = self.ways[0]
        if way.other is None:
            return Now(self.left.filters, self.right.filters, self.left.size * self.right.size)
        others = torch.stack([gathered(w.other) for w in self.ways if w.other is not None])
        rows = _laid(others.to(self.dtype), across=way.first)
        moving, fixed = (self.left, self.right) if way.first else (self.right, self.left)
        return Now(filters_of(moving.seen_through(rows), damping), fixed.filters, fixed.size)

    def taken(self, tensors: Mapping[str, Tensor], left_out: Mapping[str, int]) -> Tensor:
        """A copy of all of them, with zeros for what is not there or takes no part."""
        there = {name: _whole(tensors[name]) for name in self.names if name in tensors}
        like = next(iter(there.values()))
        x = torch.stack(
            [there[name] if name in there else torch.zeros_like(like) for name in self.names]
        ).to(self.dtype)
        self._leave_out(x, left_out)
        return _laid(x, across=True) if self._across else x

    def filtered(self, x: Tensor, now: Now, left_out: Mapping[str, int]) -> Tensor:
        """``P x P`` but for the number that is left out."""
        transposed = self.ways[0].transposed and x.ndim == 3
        matrices = x.mT if transposed else x[..., None] if x.ndim == 2 else x.flatten(2)
        found = now.right.right(now.left.left(matrices))
        found = (found.mT if transposed else found).reshape(x.shape)
        self._leave_out(found.mT if self._across else found, left_out)
        return found

    def put(self, step: WholeStep, x: Tensor) -> None:
        """Write each into its tensor, but for rows that are left out."""
        targets, pieces = [], []
        for name, piece in zip(self.names, self._standing(x).unbind(), strict=True):
            tensor, rows = step.tensors.get(name), step.left_out.get(name, 0)
            if tensor is None:
                continue
            if rows:
                piece[:rows] = gathered(tensor)[:rows]
            if self.sharded:
                put(name, tensor, piece)
            else:
                targets.append(tensor)
                pieces.append(piece)
        if targets:
            torch._foreach_copy_(targets, pieces)

    def products(self, step: WholeStep, x: Unscaled, t: Unscaled, sound: Tensor) -> Products:
        """Of the gradients with a step and its filtered form, over the layers that are sound."""
        squares = torch.where(sound, (_wide(x.unit) * _wide(norm(x.flat))).square(), 0).sum()
        reduction, g = None, x
        if step.gradients is not None:
            if not any(name in step.gradients for name in self.names):
                return Products(squares.new_zeros(3), squares)
            if self.sharded:
                name = self.names[0]
                part = local_part(name, step.gradients[name])
                reduction = part.reduction
                if part.tensor.numel() == 0:  # it still joins the sum
                    return Products(squares.new_zeros(3), squares, reduction)
                x, t = (Unscaled(part.of(self._standing(y.x)[0])[None], y.unit) for y in (x, t))
                g = _unscaled(torch.stack([part.tensor]).to(self.dtype))  # a copy
            else:
                g = _unscaled(self.taken(step.gradients, {}))
        plain, filtered = (
            _wide(dots(g.flat, y.flat)) * _wide(g.unit) * _wide(y.unit) for y in (x, t)
        )
        of_g = (_wide(norm(g.flat)) * _wide(g.unit)).square()
        each = torch.stack([plain, filtered, of_g])
        fine = sound & each.isfinite().all(0)
        return Products(torch.where(fine, each, 0).sum(1), squares, reduction)

    @property
    def _across(self) -> bool:
        return self.ways[0].other is not None and not self.ways[0].first

    def _standing(self, x: Tensor) -> Tensor:
        return x.mT.reshape(len(x), *self.shape) if self._across else x

    def _leave_out(self, x: Tensor, left_out: Mapping[str, int]) -> None:
        for number, name in enumerate(self.names) if left_out else ():
            if rows := left_out.get(name, 0):
                x[number, :rows] = 0


class Unscaled(NamedTuple):
    """Tensors of a stack, each without its unit: so squares of its numbers are within float32."""

    x: Tensor
    unit: Tensor

    @property
    def flat(self) -> Tensor:
        """A row for each."""
        return self.x.flatten(1)


@dataclass(frozen=True)
class Stack:
    """Layers of one shape. What a layer's members have in common is the norm that is matched."""

    members: tuple[Member, ...]

    def now(self, damping: float) -> list[Now]:
        """The filters of all members, before a step begins."""
        return [member.now(damping) for member in self.members]

    def turn(self, step: WholeStep, filters: Sequence[Now], measured: bool) -> Iterator[Products]:
        """Filter in place what is there, at the norm that it had, layer by layer.

        What is not finite stays in its own tensor: it has no part in any norm or product.
        """
        found = [
            (member, now, member.taken(step.tensors, step.left_out))
            for member, now in zip(self.members, filters, strict=True)
            if any(name in step.tensors for name in member.names)
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
            if measured:
                yield member.products(step, Unscaled(x, unit), Unscaled(t, scale), fine)
            member.put(step, t.mul_(_beside(t, scale)))


def stacks_of(
    ways: Mapping[str, Way], tensors: Mapping[str, Tensor], damping: float
) -> list[Stack]:
    """All covered parameters, layer by layer, and layers of one shape together."""
    layers: dict[str, list[str]] = {}
    for name, way in ways.items():
        layers.setdefault(way.group, []).append(name)
    alike: dict[object, list[list[str]]] = {}
    for names in layers.values():
        kind = tuple(_kind(name, ways[name], tensors[name]) for name in names)
        alike.setdefault(kind, []).append(names)
    return [
        _stack(some, ways, tensors, damping)
        for layers_alike in alike.values()
        for some in _in_parts(layers_alike, max(tensors[n].numel() for n in layers_alike[0]))
    ]


def _stack(
    layers: Sequence[Sequence[str]],
    ways: Mapping[str, Way],
    tensors: Mapping[str, Tensor],
    damping: float,
) -> Stack:
    stacked: dict[object, SideStack] = {}  # a weight and its bias have the same outputs
    members = []
    for names in zip(*layers, strict=True):
        own = tuple(ways[name] for name in names)
        first = tensors[names[0]]
        dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        left, right = (
            stacked.setdefault(tuple(map(id, sides)), SideStack(sides, damping, dtype))
            for sides in ([way.left for way in own], [way.right for way in own])
        )
        members.append(Member(names, own, first.shape, left, right, dtype, is_dtensor(first)))
    return Stack(tuple(members))


def _in_parts(layers: Sequence[Sequence[str]], largest: int) -> Iterator[Sequence[Sequence[str]]]:
    several = max(1, LARGEST // largest)
    for first in range(0, len(layers), several):
        yield layers[first : first + several]


def _kind(name: str, way: Way, tensor: Tensor) -> tuple[object, ...]:
    other = None if way.other is None else (way.other.shape, way.other.dtype, way.first)
    # One that is sharded is alone, so that one is whole at a time.
    alone = name if is_dtensor(tensor) else None
    like = tensor.shape, tensor.dtype, tensor.device, way.transposed
    return *like, kind_of(way.left), kind_of(way.right), other, alone


def _whole(tensor: Tensor) -> Tensor:
    whole = gathered(tensor)
    return whole if whole.layout is torch.strided else whole.to_dense()


def _laid(x: Tensor, across: bool) -> Tensor:
    """A LoRA's ``A`` or, if it lies across, ``B`` as (n, r, d)."""
    return x.flatten(2).mT.contiguous() if across else x.flatten(2)


def _taken_out(parts: Sequence[Tensor]) -> Tensor:
    """Divide each layer by its largest number (or by 1), which is returned."""
    largest = torch.stack([torch.maximum(x.amax(1), -x.amin(1)) for x in _flat(parts)])
    unit = torch.where(largest.isfinite(), largest, 0).amax(0)
    unit = torch.where(unit > 0, unit, 1)
    for x in parts:
        x.div_(_beside(x, unit))
    return unit


def _unscaled(x: Tensor) -> Unscaled:
    return Unscaled(x, _taken_out([x]))


def _flat(parts: Sequence[Tensor]) -> Iterator[Tensor]:
    for x in parts:
        yield x.flatten(1)


def _beside(x: Tensor, numbers: Tensor) -> Tensor:
    return numbers.view(-1, *[1] * (x.ndim - 1))


def _ratio(wanted: Tensor, found: Tensor) -> Tensor:
    """What to multiply by; a step of zero stays one."""
    return torch.where(found > 0, wanted / found, 1)


def _wide(x: Tensor) -> Tensor:
    # Products of two numbers that float32 holds; Apple's GPUs have no float64.
    return x if x.device.type == "mps" else x.double()
