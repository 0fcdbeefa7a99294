"""Which examples form which batch, as a pure function of (seed, task, epoch), and their loading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from risegrad.common.seeds import generator_for
from risegrad.continual.session import Items, Ref, SessionBatch

B = TypeVar("B", bound=SessionBatch)

LARGEST_POOL = 50
"""Batches whose examples are sorted by length together; at least four pools make an epoch."""


def epoch_batches(
    examples: int,
    size: int,
    *,
    seed: int,
    task: int,
    epoch: int,
    lengths: Sequence[int] | None = None,
) -> list[list[Ref]]:
    """All examples of a task in random order, cut into batches; one may be smaller.

    With ``lengths``, examples of about one length come together, which saves padding: the random
    order is cut into pools of several batches, each pool is sorted, and the batches are shuffled.

    >>> [len(batch) for batch in epoch_batches(5, 2, seed=0, task=1, epoch=0)]
    [2, 2, 1]
    """
    generator = generator_for(seed, "order", task, epoch)
    order = torch.randperm(examples, generator=generator).tolist()
    if lengths is not None:
        pool = size * min(max(examples // (4 * size), 1), LARGEST_POOL)
        order = [
            index
            for start in range(0, examples, pool)
            for index in sorted(order[start : start + pool], key=lambda i: lengths[i])
        ]
    batches = [
        [(task, index) for index in order[start : start + size]]
        for start in range(0, examples, size)
    ]
    if lengths is None:
        return batches
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


class _Batches(Dataset[B]):
    """Whole batches by position, so that a worker process makes one at a time."""

    def __init__(self, items: Items[B], refs: Sequence[Sequence[Ref]], epoch: int) -> None:
        self.items, self.refs, self.epoch = items, refs, epoch

    def __len__(self) -> int:
        return len(self.refs)

    def __getitem__(self, position: int) -> B:
        return self.items.fetch(self.refs[position], self.epoch)


def load(
    items: Items[B], refs: Sequence[Sequence[Ref]], epoch: int, *, workers: int, pin: bool = False
) -> Iterator[B]:
    """The batches in order; ``workers`` processes fetch ahead, 0 fetches here.

    What is at hand anyway is always fetched here.
    """
    batches = _Batches(items, refs, epoch)
    if workers == 0 or items.at_hand or len(refs) < 2:
        return (batches[position] for position in range(len(refs)))
    # Without a generator of its own a DataLoader takes a number from the global one.
    return iter(
        DataLoader(
            batches,
            batch_size=None,
            num_workers=workers,
            pin_memory=pin,
            generator=torch.Generator(),
        )
    )
