"""The examples that are kept: those to pull with, those held out, and how many there may be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.curvature.operators.batch_forms import size_of
from risegrad.keeping.answers import Answers

PULLED = 8
"""Examples of one pull."""
HELD_OUT = 5
"""Of how many examples one is held out: never pulled with nor remembered, for the drift."""
ROOM = 8
"""Of how many tasks as large as the first all examples stay; then those of earlier ones make room,
so that every example that was ever given is as likely to be there."""


@dataclass(frozen=True)
class Group:
    """A few examples of one batch, and what the model answered to them."""

    batch: Any
    answers: Answers
    examples: int
    counts: tuple[int, ...] = ()
    """The rows of each example, of those held out."""


@dataclass(frozen=True)
class Kept:
    """All of them."""

    pulled: tuple[Group, ...]
    held: tuple[Group, ...]
    seen: int
    """Examples that were given so far, those that made room included."""

    def joined(self, new: Kept, room: int, seed: int) -> Kept:
        """With those of another task, at random so many of each that ``room`` examples are left."""
        seen = self.seen + new.seen
        share = self.seen / seen

        def both(here: Sequence[Group], there: Sequence[Group], most: int) -> tuple[Group, ...]:
            if count(here) + count(there) <= most:
                return (*here, *there)
            first = _some(here, round(share * most), seed, seen)
            return (*first, *_some(there, most - count(first), seed, seen + 1))

        held = max(1, room // HELD_OUT)
        return Kept(
            both(self.pulled, new.pulled, room - held), both(self.held, new.held, held), seen
        )

    @property
    def bytes(self) -> int:
        """What the examples and the answers take."""
        groups = (*self.pulled, *self.held)
        return sum(g.answers.bytes + _bytes(g.batch) for g in groups)


def count(groups: Sequence[Group]) -> int:
    """The examples in them."""
    return sum(group.examples for group in groups)


def split(batches: Sequence[Any], seed: int) -> tuple[list[Any], list[Any]]:
    """Small batches to pull with, and others of the fifth that is held out; at random."""
    sizes = [size_of(batch) for batch in batches]
    total = sum(sizes)
    if total < 2:
        raise ValueError(f"old must hold at least two examples, one to be held out; got {total}")
    order = torch.randperm(total, generator=generator_for(seed, "keep", "split"))
    held = torch.zeros(total, dtype=torch.bool)
    held[order[: max(1, total // HELD_OUT)]] = True
    parts: tuple[list[Any], list[Any]] = [], []
    start = 0
    for batch, size in zip(batches, sizes, strict=True):
        here = order[(order >= start) & (order < start + size)]
        for side, into in zip((False, True), parts, strict=True):
            index = here[held[here] == side] - start
            into += [chosen(batch, few, size) for few in torch.split(index, PULLED) if len(few)]
        start += size
    return parts


def chosen(batch: Any, index: Tensor, size: int) -> Any:
    """Some of a batch's examples."""
    if isinstance(batch, Tensor):
        fits = batch.ndim > 0 and len(batch) == size
        return batch[index.to(batch.device)] if fits else batch
    if isinstance(batch, Mapping):
        return {key: chosen(value, index, size) for key, value in batch.items()}
    return tuple(chosen(v, index, size) for v in batch) if isinstance(batch, tuple) else batch


def singles(batch: Any) -> Iterator[Any]:
    """A batch's examples one by one."""
    size = size_of(batch)
    return (chosen(batch, torch.tensor([number]), size) for number in range(size))


def taken(groups: Sequence[Group], number: int, seed: int) -> Sequence[Group]:
    """The groups of pull ``number``: about eight examples, in a new order in every round.

    A pure function, so that a resumed run pulls with what it would have.
    """
    together: list[list[Group]] = []
    for group in groups:
        if together and count(together[-1]) + group.examples <= PULLED:
            together[-1].append(group)
        else:
            together.append([group])
    turn, at = divmod(number, len(together))
    order = torch.randperm(len(together), generator=generator_for(seed, "keep", "pull", turn))
    return together[int(order[at])]


def _some(groups: Sequence[Group], most: int, seed: int, seen: int) -> list[Group]:
    """At random so many groups that there are not more than ``most`` examples, but at least one."""
    order = torch.randperm(len(groups), generator=generator_for(seed, "keep", "room", seen))
    found: list[Group] = []
    for number in order.tolist():
        if not found or count(found) + groups[number].examples <= most:
            found.append(groups[number])
    return found


def _bytes(batch: Any) -> int:
    if isinstance(batch, Tensor):
        return batch.numel() * batch.element_size()
    inner = batch.values() if isinstance(batch, Mapping) else batch
    return sum(map(_bytes, inner)) if isinstance(batch, Mapping | tuple) else 0
