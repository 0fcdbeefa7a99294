"""The forms a batch may have, and how a prediction and its target come out of each.

- ``(inputs, target)``: ``model(inputs)``, or ``model(**inputs)`` for a mapping;
- a mapping with ``labels``, as transformers takes it: the logits where the label counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Predict = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
"""``predict(model, batch) -> (prediction, target)``."""

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


def check_labels(prediction: Tensor, target: Tensor, loss: nn.Module, what: str) -> None:
    """Classes must be among the model's outputs: torch's own error names neither."""
    if not isinstance(loss, nn.CrossEntropyLoss) or target.is_floating_point():
        return
    outputs = prediction.shape[min(1, prediction.ndim - 1)]
    wrong = target[(target != loss.ignore_index) & ((target < 0) | (target >= outputs))]
    if len(wrong):
        raise ValueError(
            f"{what} labels must be from 0 to {outputs - 1}, as the model has {outputs} outputs; "
            f"got {int(wrong[0])}"
        )


def choose_predict(model: nn.Module, batch: Any, loss: nn.Module) -> Predict:
    """The way of reading that fits the batch; for a mapping, the one that gives its own loss."""
    if isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return _from_pair
    if isinstance(batch, Mapping) and "labels" in batch:
        return _from_labels(model, batch, loss)
    raise TypeError(
        "a batch must be a pair (inputs, target) or a mapping with 'labels'; pass predict= for "
        f"another form; got {form_of(batch)}"
    )


def _from_pair(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    inputs, target = batch
    found = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    return getattr(found, "logits", found), target


def _from_labels(model: nn.Module, batch: Mapping[str, Any], loss: nn.Module) -> Predict:
    """Labels at the position of their logits or, in a causal model, one place after."""
    options, shift = options_of(model), label_shift(model, batch, loss)
    return lambda m, b: _counted(m(**b, **options).logits, b["labels"], shift)


def label_shift(model: nn.Module, batch: Mapping[str, Any], loss: nn.Module) -> int:
    """How many places after its logits a label stands, by the model's own loss."""
    if not counts_any(batch["labels"]):
        raise ValueError(
            f"where labels stand cannot be told from a batch in which all are {IGNORED}: give "
            "another one first, or pass predict="
        )
    with torch.no_grad():
        found = model(**batch, **options_of(model))
    own = None if found.loss is None else found.loss.item()
    if own is None:
        return 0
    values = []
    for shift in (0, 1)[: 2 if found.logits.ndim >= 3 else 1]:
        prediction, target = _counted(found.logits, batch["labels"], shift)
        values.append(loss(prediction, target).mean().item())
    # The nearest, not the first that is near: those of an untrained model are all alike.
    nearest = min(range(len(values)), key=lambda shift: abs(values[shift] - own))
    if abs(values[nearest] - own) <= 1e-3 * max(1.0, abs(own)):
        return nearest
    shown = " or ".join(f"{value:.4g}" for value in values)
    raise ValueError(
        f"the model's own loss is {own:.4g}, {type(loss).__name__} of its logits gives {shown}: "
        "pass predict= (and loss=, where there is one) that give the loss you mean"
    )


def counts_any(labels: Any) -> bool:
    """Whether any label counts."""
    return not isinstance(labels, Tensor) or bool((labels != IGNORED).any())


def _counted(logits: Tensor, labels: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """Logits and labels of the positions that count, one row for each.

    Dropped here, ignored positions cannot enter a Fisher's samples or its average.
    """
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    if logits.ndim != labels.ndim + 1:
        return logits, labels
    counts = labels != IGNORED
    return logits[counts], labels[counts]


def options_of(model: nn.Module) -> dict[str, Any]:
    """A generation cache is of no use here and cannot be differentiated through."""
    unwrap: Any = getattr(model, "get_base_model", lambda: model)
    base = unwrap()
    taken = inspect.signature(base.forward).parameters
    return {"use_cache": False} if "use_cache" in taken else {}
