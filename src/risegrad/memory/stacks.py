"""Layers of one shape, filtered together: a handful of operations for all of them.

Nothing here reads a number of the device: a step is put in the queue and the host goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from risegrad.core.arithmetic import norm
from risegrad.core.shards import Reduction, WholeStep, is_dtensor
from risegrad.memory.filters import SideStack, Whole, filters_of, kind_of
from risegrad.memory.lengths import Products, Progress, lengths
from risegrad.memory.members import Begun, Member, beside
from risegrad.memory.sides import Way

LARGEST = {"cpu": 1 << 18}
"""Elements of a stack, so that it stays in the caches; ``FAR`` where launches cost more."""
FAR = 1 << 20


@dataclass(frozen=True)
class Turned:
    """Filtered steps of a stack, each still to be multiplied by a number."""

    parts: tuple[tuple[Member, Begun, Tensor], ...]
    numbers: Tensor
    """``lengths`` takes them."""
    reductions: tuple[Reduction | None, ...]

    def put(self, step: WholeStep, scales: Tensor) -> None:
        """Write them to their tensors, multiplied."""
        for (member, begun, t), scale in zip(self.parts, scales.unbind(), strict=True):
            member.put(step, begun, t, scale)


@dataclass(frozen=True)
class Stack:
    """Layers of one shape. What a layer's members have in common is the norm that is matched."""

    members: tuple[Member, ...]

    @property
    def small(self) -> bool:
        """Whether it waits until the factor of a step is known."""
        return self.members[0].small

    def turn(self, step: WholeStep, begun: Sequence[Begun], measured: bool) -> Turned | None:
        """Filter what is there."""
        found = [
            (member, now, member.taken(step, now.starts))
            for member, first in zip(self.members, begun, strict=True)
            if any(name in step.tensors for name in member.names)
            for now in [member.decayed(first, step.kept)]
        ]
        if not found:
            return None
        unit = _taken_out([x for _, _, x in found])
        parts, numbers = [], []
        for member, now, x in found:
            t = member.filtered(x, now, step.left_out)
            rows = [unit, now.size, norm(x.flatten(1)), norm(t.flatten(1))]
            if measured:
                rows += member.products(step, x, t)
            parts.append((member, now, t))
            numbers.append(torch.stack(rows))
        reductions = tuple(member.reduction(step) for member, _, _ in found)
        return Turned(tuple(parts), torch.stack(numbers, 1), reductions)


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
        found: dict[int, Begun] = {}
        for member in self.members:
            if member.left is not None:
                size = member.left.size * member.right.size
                found[id(member)] = Begun(member.left.filters, member.right.filters, size, None)
        seen, starts = [], []
        for member in self._pairs:
            stay = moving is not None and member.small
            own = member.values(stay)
            starts.append(own if stay else None)
            seen.append(member.seen(own))
        for member, side, start in zip(self._pairs, self._small_sides(seen), starts, strict=True):
            found[id(member)] = Begun(side, member.right.filters, member.right.size, start)
        return [[found[id(member)] for member in stack.members] for stack in self.stacks]

    def turn(
        self, step: WholeStep, begun: Sequence[Sequence[Begun]], progress: Progress | None
    ) -> None:
        """Filter the step, at the norms that it had, then lengthen it to the plain one's progress.

        A large step is in its tensors meanwhile, a small one waits.
        """
        own, measured = step.gradients is None, progress is not None
        products: list[Products] = []
        waiting: dict[torch.device, list[Turned]] = {}
        for stack, now in zip(self.stacks, begun, strict=True):
            turned = stack.turn(step, now, measured)
            if turned is not None and stack.small:
                waiting.setdefault(turned.numbers.device, []).append(turned)
            elif turned is not None:
                scales, found = lengths(turned.numbers, own, turned.reductions)
                turned.put(step, scales)
                products += found
        ready: list[tuple[Turned, Tensor]] = []
        for several in waiting.values():
            scales, found = lengths(torch.cat([t.numbers for t in several], -1), own)
            layers = [t.numbers.shape[-1] for t in several]
            ready += zip(several, torch.split(scales, layers, -1), strict=True)
            products += found
        factor = None
        if progress is not None:
            progress.follow(products, not own and step.downhill)
            factor = progress.factor
            for member in self.members:
                if not member.small:
                    member.lengthen(step, factor)
        for turned, scales in reversed(ready):  # the last ones are in the caches still
            turned.put(step, scales if factor is None else scales * factor.to(scales))

    def _small_sides(self, seen: Sequence[Tensor]) -> list[Whole]:
        """Of each LoRA matrix the side that follows the other one, all in one go."""
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
    """Divide each layer by its largest number (or by 1), which is returned: so squares of its
    numbers are within float32."""
    flat = [x.flatten(1) for x in parts]
    # What is not finite has no part in it; a step of zero is divided by something.
    largest = [
        torch.maximum(x.amax(1), x.amin(1).neg_()).nan_to_num_(nan=0, posinf=0) for x in flat
    ]
    unit = torch.stack(largest).amax(0) if len(largest) > 1 else largest[0]
    unit = unit.clamp_(min=torch.finfo(unit.dtype).tiny)
    for x in parts:
        x.div_(beside(x, unit))
    return unit
