"""Which examples form which batch, as a pure function of (seed, task, epoch), and their loading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from risegrad.common.seeds import generator_for
from riselab.continual.host import Items, Ref, SessionBatch

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


class _Fetched(Dataset[B]):
    """Whole batches by what is in them, so that a worker process makes one at a time."""

    def __init__(self, items: Items[B]) -> None:
        self.items = items

    def __getitem__(self, wanted: tuple[Sequence[Ref], int]) -> B:
        return self.items.fetch(*wanted)


class Loader(Generic[B]):
    """Batches of some items; ``workers`` processes fetch ahead, 0 fetches here.

    The processes start when they are first needed and stay for the next epoch. What is at hand
    anyway is always fetched here.
    """

    def __init__(self, items: Items[B], workers: int, pin: bool = False) -> None:
        self.items, self.workers, self.pin = items, workers, pin
        self._wanted: list[tuple[Sequence[Ref], int]] = []
        self._processes: DataLoader[B] | None = None
        self._busy = False

    def batches(self, refs: Sequence[Sequence[Ref]], epoch: int) -> Iterator[B]:
        """The batches in order."""
        wanted = [(batch, epoch) for batch in refs]
        if self.workers == 0 or self.items.at_hand or len(refs) < 2:
            return (self.items.fetch(*batch) for batch in wanted)
        return self._ahead(wanted)

    def _ahead(self, wanted: list[tuple[Sequence[Ref], int]]) -> Iterator[B]:
        if self._busy:  # who asks in the middle of an epoch must not take its batches
            yield from self._loader(wanted, stay=False)
            return
        self._busy = True
        try:
            self._wanted[:] = wanted
            if self._processes is None:
                self._processes = self._loader(self._wanted, stay=True)
            yield from self._processes
        finally:
            self._busy = False

    def _loader(self, wanted: list[tuple[Sequence[Ref], int]], stay: bool) -> DataLoader[B]:
        # Without a generator of its own a DataLoader takes a number from the global one.
        return DataLoader(
            _Fetched(self.items), sampler=wanted, batch_size=None, num_workers=self.workers,
            pin_memory=self.pin, generator=torch.Generator(), persistent_workers=stay,
        )  # fmt: skip


Indices = NDArray[np.int64]


def chosen(indices: Indices, number: int | None, *key: int) -> tuple[Indices, Indices]:
    """``number`` of the indices (None: all) chosen by the key, and the others; both ascending."""
    shuffled = np.random.RandomState(key).permutation(indices)
    cut = len(indices) if number is None else number
    return np.sort(shuffled[:cut]), np.sort(shuffled[cut:])


def share(total: int, fraction: float) -> int:
    """``fraction`` of the examples, at least one if any is wanted, but never all of them.

    >>> share(10, 0.0), share(10, 0.25), share(10, 0.01), share(2, 0.9), share(1, 0.5)
    (0, 2, 1, 1, 0)
    """
    return min(total - 1, max(1, round(total * fraction))) if fraction and total else 0
