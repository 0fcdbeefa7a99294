"""The forms that batches have: what is moved, counted and compared of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

IGNORED = -100
"""transformers' label for positions that do not count."""


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return tuple(moved(value, device) for value in batch)
    return batch


def size_of(batch: Any) -> int:
    """Examples in a batch: the first dimension of its first tensor."""
    first = _first_tensor(batch)
    if first is None or first.ndim == 0 or first.shape[0] == 0:
        raise ValueError(f"a batch must hold at least one example, got {form_of(batch)}")
    return first.shape[0]


def _first_tensor(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if isinstance(batch, tuple):
        return next((found for part in batch if (found := _first_tensor(part)) is not None), None)
    return None


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
