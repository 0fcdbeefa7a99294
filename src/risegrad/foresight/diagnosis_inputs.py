"""What ``diagnose`` may be given: a model or a Trainer, batches, data sets or plain tensors."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

BATCHES = 8
"""Of a Trainer's data set, at most."""
PIECES = 4
"""Batches that one pair of tensors is cut into, where it has as many examples."""


def problem_of(model: Any, historical: Any, incoming: Any) -> tuple[nn.Module, Any, Any]:
    """A module, and batches of what it must keep and of what it is to learn."""
    if _is_trainer(model):
        return _of_trainer(model, historical, incoming)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch module or a transformers Trainer, got {type(model).__name__}"
        )
    if incoming is None:
        raise TypeError("incoming must be batches of what is to be learned, got None")
    return model, _cut(historical), _cut(incoming)


def _is_trainer(model: Any) -> bool:
    return all(hasattr(model, name) for name in ("get_train_dataloader", "get_eval_dataloader"))


def _of_trainer(trainer: Any, historical: Any, incoming: Any) -> tuple[nn.Module, Any, Any]:
    """Batches as the Trainer collates them; its own data sets where none are given."""
    _check_loss(trainer)
    if historical is None and trainer.eval_dataset is None:
        raise TypeError(
            "historical must be a data set of what is to be kept, got None, and the Trainer has no "
            "eval_dataset"
        )
    if incoming is None and trainer.train_dataset is None:
        raise TypeError(
            "incoming must be a data set of what is to be learned, got None, and the Trainer has "
            "no train_dataset"
        )
    # Training shuffles by global random numbers: always the same here, and put back.
    with torch.random.fork_rng(devices=range(torch.accelerator.device_count())):
        torch.manual_seed(0)
        old = _trainer_batches(trainer.get_eval_dataloader(historical))
        own = incoming is None
        loader = trainer.get_train_dataloader() if own else trainer.get_eval_dataloader(incoming)
        return trainer.model, old, _trainer_batches(loader)


def _check_loss(trainer: Any) -> None:
    """What is diagnosed is the model's own loss."""
    smoothing = getattr(trainer.args, "label_smoothing_factor", 0.0)
    own = getattr(trainer, "compute_loss_func", None)
    if smoothing or own is not None:
        what = "compute_loss_func" if own is not None else f"label_smoothing_factor={smoothing}"
        raise ValueError(
            f"a Trainer must train by its model's own loss to be diagnosed, got {what}; give the "
            "model and batches, and the loss as batch_loss=BatchLoss(...)"
        )


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
