"""What is to be kept, as rows of numbers and a random scalar of them.

The second moments of the scalar's gradients are the curvature:

- predictions: minus the log-probability of a label drawn from the model itself, which gives the
  Fisher matrix of ``softmax``;
- features: their product with random signs, which gives ``J'J``, the Gauss-Newton matrix of half
  their squared distance.

Neither needs a label; labels only say which positions count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from risegrad.core.blocks import listing
from risegrad.curvature.memory.covered_layers import all_layers
from risegrad.curvature.memory.layer_names import layer_name
from risegrad.curvature.operators.batch_forms import (
    IGNORED,
    choose_predict,
    form_of,
    label_shift,
    options_of,
)

Rows = Callable[[nn.Module, Any], Tensor]
"""``rows(model, batch)``: one row for each prediction (or feature vector) that counts."""
Of = str | Callable[[nn.Module, Any], Tensor]
Reading = Callable[[nn.Module, Any], Any]
"""``predict(model, batch)``: a prediction, or a pair of it and its target."""


def drawn_score(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Minus the log-probabilities of labels drawn from ``softmax(rows)``, added up."""
    if rows.shape[-1] < 2:
        raise ValueError(
            "of='predictions' needs at least two classes in the last dimension of the prediction, "
            f"got shape {tuple(rows.shape)}: use of='features'"
        )
    chances = rows.detach().float().softmax(-1).cpu()
    if not bool(chances.isfinite().all()):
        raise FloatingPointError("the model's predictions are not finite")
    labels = torch.multinomial(chances, 1, generator=generator)[:, 0].to(rows.device)
    wide = rows if rows.dtype == torch.float64 else rows.float()
    return cross_entropy(wide, labels, reduction="sum")


def probed_score(rows: Tensor, generator: torch.Generator) -> Tensor:
    """The rows times random signs, added up."""
    if not bool(rows.detach().isfinite().all()):
        raise FloatingPointError("the model's features are not finite")
    signs = torch.randint(2, rows.shape, generator=generator) * 2 - 1
    return (rows * signs.to(rows)).sum()


def choose_rows(model: nn.Module, batch: Any, of: Of, predict: Reading | None) -> Rows:
    """The way to the rows that ``of`` names, for batches of this form."""
    if of == "predictions":
        return _predictions(model, batch, predict)
    if of == "features":
        return _features(model, batch, predict)
    if callable(of):
        return lambda m, b: _flat(_tensor(of(m, b), "of"))
    if isinstance(of, str):
        module = _find(model, of)
        run = predict or _plain_run(model, batch)
        shift = _token_shift(model, batch) if predict is None else 0
        keys = _MASKS[1:] if _reads_inputs(model, module) else _MASKS
        return lambda m, b: _positions(_output_of(module, lambda: run(m, b)), b, shift, keys)
    raise TypeError(
        "of must be 'predictions', 'features', the name of a module or a function of "
        f"(model, batch), got {type(of).__name__}"
    )


def _predictions(model: nn.Module, batch: Any, predict: Reading | None) -> Rows:
    if predict is None and (_is_pair(batch) or (isinstance(batch, Mapping) and "labels" in batch)):
        predict = choose_predict(model, batch, nn.CrossEntropyLoss())
    if predict is not None:
        reading = predict
        return lambda m, b: _answered(reading(m, b))
    run = _plain_run(model, batch)
    return lambda m, b: _positions(_logits(run(m, b)), b, 0)


def _answered(found: Any) -> Tensor:
    """Rows of a prediction, without those whose target is ignored.

    Classes come last or, as torch's own loss takes images, second.
    """
    prediction, target = found if isinstance(found, tuple) else (found, None)
    prediction = _tensor(prediction, "predict")
    if _classes_second(prediction, target):
        prediction = prediction.movedim(1, -1)
    if isinstance(target, Tensor) and target.shape == prediction.shape[:-1]:
        return prediction[target != IGNORED]
    return prediction.reshape(-1, prediction.shape[-1])


def _classes_second(prediction: Tensor, target: Any) -> bool:
    if not isinstance(target, Tensor) or target.shape == prediction.shape[:-1]:
        return False
    return prediction.ndim > 2 and target.shape == (len(prediction), *prediction.shape[2:])


def _features(model: nn.Module, batch: Any, predict: Reading | None) -> Rows:
    """What the last linear layer is given, if the model returns what that layer makes of it."""
    if predict is not None:
        reading = predict
        return lambda m, b: _answered(reading(m, b))
    run = _plain_run(model, batch)
    shift = _token_shift(model, batch)

    def rows(m: nn.Module, b: Any) -> Tensor:
        heads = [layer.module for layer in all_layers(m).values() if layer.kind in _HEADS]
        with _calls(heads) as calls:
            found = run(m, b)
        out = getattr(found, "logits", getattr(found, "last_hidden_state", found))
        given = next((x for x, made in reversed(calls) if made is out), out)
        return _positions(_tensor(given, "the model"), b, shift)

    return rows


_HEADS = ("linear", "conv1d")
_MASKS = ("labels", "attention_mask")


def _token_shift(model: nn.Module, batch: Any) -> int:
    """How many places after what predicts it a label stands, where every token has one."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    tokens = isinstance(labels, Tensor) and labels.ndim == 2
    return label_shift(model, batch, nn.CrossEntropyLoss()) if tokens else 0


def _reads_inputs(model: nn.Module, module: nn.Module) -> bool:
    """Whether a module is in the encoder of an encoder-decoder: labels are of the decoder's tokens,
    and inputs may happen to be as long."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    encoder: Any = getattr(model, "get_encoder", lambda: None)()
    return isinstance(encoder, nn.Module) and any(part is module for part in encoder.modules())


def _positions(values: Tensor, batch: Any, shift: int, keys: tuple[str, ...] = _MASKS) -> Tensor:
    """One row for each position that counts, by the labels or the attention mask."""
    if isinstance(batch, Mapping) and values.ndim == 3:
        for key in keys:
            mask = batch.get(key)
            if isinstance(mask, Tensor) and mask.shape == values.shape[:2]:
                counts = mask != IGNORED if key == "labels" else mask != 0
                if key == "labels" and shift:
                    return values[:, :-1][counts[:, 1:]]
                return values[counts]
    return _flat(values)


def _flat(values: Tensor) -> Tensor:
    """An image of features is one row, a sequence one row for each token."""
    return values.flatten(1) if values.ndim == 4 else values.reshape(-1, values.shape[-1])


def _plain_run(model: nn.Module, batch: Any) -> Callable[[nn.Module, Any], Any]:
    if isinstance(batch, Mapping):
        options = options_of(model)
        return lambda m, b: m(**b, **options)
    if isinstance(batch, Tensor):
        return lambda m, b: m(b)
    if isinstance(batch, tuple) and len(batch) in (1, 2):
        return lambda m, b: m(**b[0]) if isinstance(b[0], Mapping) else m(b[0])
    raise TypeError(
        "a batch must be a tensor, a pair (inputs, target) or a mapping; pass predict= for another "
        f"form; got {form_of(batch)}"
    )


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, tuple) and len(batch) == 2


def _logits(found: Any) -> Tensor:
    logits = getattr(found, "logits", found)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model returns no logits but {type(found).__name__}: pass predict=, or "
            "of='features'"
        )
    return logits


def _tensor(found: Any, what: str) -> Tensor:
    if isinstance(found, tuple) and found:
        found = found[0]
    if not isinstance(found, Tensor) or found.ndim < 2:
        shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(f"{what} must give a tensor (examples, numbers), got {shown}")
    return found


def _find(model: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = {
        layer_name(own): module for own, module in model.named_modules()
    }
    modules |= dict(model.named_modules())
    if not name or name not in modules:
        raise ValueError(
            "of must be 'predictions', 'features' or the name of a module, got "
            f"{name!r}; the modules are {listing([own for own in modules if own])}"
        )
    return modules[name]


def _output_of(module: nn.Module, run: Callable[[], Any]) -> Tensor:
    with _calls([module]) as calls:
        run()
    if not calls:
        raise ValueError("of names a module that the model does not call on these batches")
    made = calls[-1][1]
    return _tensor(getattr(made, "last_hidden_state", made), "of")


@contextmanager
def _calls(modules: list[nn.Module]) -> Iterator[list[tuple[Any, Any]]]:
    """The first input and the output of every call, in order."""
    calls: list[tuple[Any, Any]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        calls.append((args[0] if args else next(iter(kwargs.values()), None), out))

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
