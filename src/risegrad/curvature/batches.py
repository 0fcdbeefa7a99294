"""The forms that batches have: what is moved, counted and compared of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

IGNORED = -100
"""transformers' label for positions that do not count."""


def mapped(function: Callable[[Tensor], Any], batch: Any) -> Any:
    """A function of every tensor of a batch, in the batch's form; sequences become tuples."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(function, value) for key, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return tuple(mapped(function, value) for value in batch)
    return batch


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device."""
    return mapped(lambda tensor: tensor.to(device), batch)


def chosen(batch: Any, index: Tensor | slice, size: int) -> Any:
    """Some of the ``size`` examples of a batch; what is not one for each example stays."""

    def some(tensor: Tensor) -> Tensor:
        if not tensor.ndim or len(tensor) != size:
            return tensor
        return tensor[index.to(tensor.device) if isinstance(index, Tensor) else index]

    return mapped(some, batch)


def tensors_of(batch: Any) -> list[Tensor]:
    """All tensors of a batch, in its order."""
    found: list[Tensor] = []
    mapped(found.append, batch)
    return found


def size_of(batch: Any) -> int:
    """Examples in a batch: the first dimension of its first tensor."""
    first = next(iter(tensors_of(batch)), None)
    if first is None or first.ndim == 0 or first.shape[0] == 0:
        raise ValueError(f"a batch must hold at least one example, got {form_of(batch)}")
    return first.shape[0]


def check_batches(name: str, given: object) -> Iterable[Any]:
    """A list or loader, and not a single batch."""
    if isinstance(given, Mapping | Tensor | str) or not isinstance(given, Iterable):
        kind = type(given).__name__
        raise TypeError(f"{name} must be a list or a loader of batches, got {kind}")
    return given


def form_of(batch: Any) -> str:
    """What must agree between batches: kinds, dtypes and numbers of dimensions, not the sizes."""
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} with {batch.ndim} dimensions"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {form_of(batch[key])}" for key in sorted(batch)) + "}"
    if isinstance(batch, tuple):
        return "(" + ", ".join(form_of(part) for part in batch) + ")"
    return type(batch).__name__


def check_same_form(batches: Sequence[Any], what: str, other: str | None = None) -> None:
    """All batches of one form; with ``other``, also that of another set of batches."""
    expected = other or form_of(batches[0])
    for batch in batches:
        if form_of(batch) != expected:
            source = "the historical ones" if other else "the first"
            raise ValueError(
                f"{what} batches must all have the form of {source}, {expected}; "
                f"got {form_of(batch)}"
            )
