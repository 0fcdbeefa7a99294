"""What ``remember`` runs over: batches of one form, as many as asked for, in step everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from risegrad.curvature.memory.many_ranks import Ranks
from risegrad.curvature.operators.batch_forms import form_of, moved, size_of


@dataclass(frozen=True)
class Round:
    """A batch of this process, while each of the others has one of its own."""

    batch: Any
    counts: bool
    """Not where this process has none left and only keeps step with the others."""
    seen: int
    """Examples of all processes so far."""


def rounds(
    batches: object, device: torch.device, examples: int | None, ranks: Ranks
) -> Iterator[Round]:
    """The batches on the device until ``examples`` were seen, the last one cut."""
    given = _of_one_form(batches, device)
    first = next(given, None)
    given = chain([] if first is None else [first], given)
    if ranks.group is not None and len({*ranks.gather(_digest(first))}) == 1:
        given = islice(given, ranks.own, None, ranks.count)  # all were given the same
    last, seen = first, 0
    while examples is None or seen < examples:
        batch = next(given, None)
        sizes = ranks.gather(0 if batch is None else size_of(batch))
        if not any(sizes):
            return
        if not all(ranks.gather(last is not None)):
            raise ValueError("batches must hold at least one batch in every process")
        before = seen + sum(sizes[: ranks.own])
        own = sizes[ranks.own] if examples is None else min(sizes[ranks.own], examples - before)
        last = last if batch is None else batch
        seen = seen + sum(sizes) if examples is None else min(seen + sum(sizes), examples)
        part = _first(last, own, sizes[ranks.own]) if 0 < own < sizes[ranks.own] else last
        yield Round(part, own > 0, seen)


def _of_one_form(batches: object, device: torch.device) -> Iterator[Any]:
    if isinstance(batches, Mapping | Tensor | str) or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches must be a list or a loader of batches, got {type(batches).__name__}"
        )
    expected = None
    for raw in batches:
        batch = _detached(moved(raw, device))
        expected = expected or form_of(batch)
        if form_of(batch) != expected:
            raise ValueError(
                f"batches must all have the form of the first, {expected}; got {form_of(batch)}"
            )
        yield batch


def _detached(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.clone() if batch.is_inference() else batch.detach()
    if isinstance(batch, Mapping):
        return {key: _detached(value) for key, value in batch.items()}
    return tuple(map(_detached, batch)) if isinstance(batch, tuple) else batch


def _first(batch: Any, count: int, size: int) -> Any:
    """The first examples of a batch."""
    if isinstance(batch, Tensor):
        return batch[:count] if batch.ndim and len(batch) == size else batch
    if isinstance(batch, Mapping):
        return {key: _first(value, count, size) for key, value in batch.items()}
    return tuple(_first(v, count, size) for v in batch) if isinstance(batch, tuple) else batch


def _digest(batch: Any) -> str:
    """The same for equal batches."""
    digest = hashlib.sha256()
    for value in torch.utils._pytree.tree_leaves(batch):
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
            plain = value.detach().cpu().contiguous().reshape(-1)
            digest.update(plain.view(torch.uint8).numpy().tobytes())
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()
