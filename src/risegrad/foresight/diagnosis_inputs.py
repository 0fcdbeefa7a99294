"""What ``diagnose`` may be given: a model or a Trainer, batches, data sets or plain tensors."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from torch import Tensor, nn

BATCHES = 8
"""Of a Trainer's data set, at most."""
PIECES = 4
"""Batches that one pair of tensors is cut into, where it has as many examples."""


def problem_of(model: Any, historical: Any, incoming: Any) -> tuple[nn.Module, Any, Any]:
    """A module, and batches of what it must keep and of what it is to learn."""
    if _is_trainer(model):
        old = _trainer_batches(model.get_eval_dataloader(historical))
        loader = (
            model.get_train_dataloader()
            if incoming is None
            else model.get_eval_dataloader(incoming)
        )
        return model.model, old, _trainer_batches(loader)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch module or a transformers Trainer, got {type(model).__name__}"
        )
    if incoming is None:
        raise TypeError("incoming must be batches of what is to be learned, got None")
    return model, _cut(historical), _cut(incoming)


def _is_trainer(model: Any) -> bool:
    return all(hasattr(model, name) for name in ("get_train_dataloader", "get_eval_dataloader"))


def _trainer_batches(loader: Any) -> list[Any]:
    return [_plain(batch) for batch in islice(loader, BATCHES)]


def _plain(batch: Any) -> Any:
    """A ``BatchEncoding`` as a dictionary."""
    return dict(batch) if isinstance(batch, Mapping) or hasattr(batch, "keys") else batch


def _cut(given: Any) -> Any:
    """A pair of tensors in a few batches; everything else is batches already."""
    pair = isinstance(given, tuple) and len(given) == 2
    if not pair or not all(isinstance(part, Tensor) and part.ndim for part in given):
        return given
    inputs, target = given
    if len(inputs) != len(target):
        raise ValueError(
            f"inputs and target must have as many rows, got {len(inputs)} and {len(target)}"
        )
    count = max(1, min(PIECES, len(inputs)))
    return list(zip(inputs.chunk(count), target.chunk(count), strict=True))
