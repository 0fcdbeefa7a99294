"""What is to be kept, as rows of numbers and a random scalar of them.

The second moments of the scalar's gradients are the curvature:

- predictions: minus the log-probability of a label drawn from the model itself, which gives the
  Fisher matrix of ``softmax``;
- features: their product with random signs, which gives ``J'J``, the Gauss-Newton matrix of half
  their squared distance.

Neither needs a label; labels only say which positions count.
"""

from __future__ import annotations

import inspect
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
    counts_any,
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
    """The way to the rows that ``of`` names, for batches of this form.

    If the batch does not show its labels, the rows are right for it and not for others.
    """
    if callable(of):
        return lambda m, b: _flat(_tensor(of(m, b), "of"))
    if predict is None and isinstance(batch, tuple) and len(batch) == 1:
        inner = choose_rows(model, batch[0], of, None)
        return lambda m, b: inner(m, b[0])
    if of == "predictions":
        return _predictions(model, batch, predict)
    if of == "features":
        return _features(model, batch, predict)
    if isinstance(of, str):
        module = _find(model, of)
        run = predict or _plain_run(model, batch)
        shift = _token_shift(model, batch) if predict is None else 0
        keys = _masks(model, module)
        return lambda m, b: _positions(_output_of(module, lambda: run(m, b)), b, shift, keys)
    raise TypeError(
        "of must be 'predictions', 'features', the name of a module or a function of "
        f"(model, batch), got {type(of).__name__}"
    )


def shows_labels(batch: Any) -> bool:
    """Whether a batch can tell where its labels stand: not if it has some and all are ignored."""
    return counts_any(_inputs(batch).get("labels"))


def _inputs(batch: Any) -> Mapping[str, Any]:
    """What the model is given by name; empty if it is given a tensor."""
    if isinstance(batch, tuple) and batch:
        return _inputs(batch[0])
    return batch if isinstance(batch, Mapping) else {}


def _predictions(model: nn.Module, batch: Any, predict: Reading | None) -> Rows:
    labelled = isinstance(batch, Mapping) and "labels" in batch
    if predict is None and labelled and not shows_labels(batch):
        return lambda m, b: torch.zeros(0, 2)
    if predict is None and (labelled or _is_pair(batch)):
        predict = choose_predict(model, batch, nn.CrossEntropyLoss())
    if predict is not None:
        reading = predict
        return lambda m, b: _answered(reading(m, b))
    run, keys = _plain_run(model, batch), _masks(model)

    def rows(m: nn.Module, b: Any) -> Tensor:
        logits = _logits(run(m, b))
        _class_axis(logits, None)
        return _positions(logits, b, 0, keys)

    return rows


def _answered(found: Any) -> Tensor:
    """Rows of a prediction, without those whose target is ignored."""
    prediction, target = _parted(found)
    moved = prediction.movedim(_class_axis(prediction, target), -1)
    return moved[_counts(moved, target)].reshape(-1, moved.shape[-1])


def _answered_features(found: Any) -> Tensor:
    """The same of features: they need no classes, and their targets may be anything."""
    values, target = _parted(found)
    moved = values.movedim(1, -1) if _second(values, target) else values
    return _flat(moved[_counts(moved, target)])


def _parted(found: Any) -> tuple[Tensor, Any]:
    prediction, target = found if isinstance(found, tuple) else (found, None)
    return _tensor(prediction, "predict"), target


def _counts(values: Tensor, target: Any) -> Any:
    """Which of them have a target that counts; all, if it has another shape."""
    fits = isinstance(target, Tensor) and target.shape == values.shape[:-1]
    return target != IGNORED if fits else ...


def _second(values: Tensor, target: Any) -> bool:
    """Whether classes come second, as torch's own loss takes images."""
    if not isinstance(target, Tensor) or target.shape == values.shape[:-1]:
        return False
    return values.ndim > 2 and target.shape == (len(values), *values.shape[2:])


def _class_axis(prediction: Tensor, target: Any) -> int:
    """The dimension of the classes: last or, where the target says so, second."""
    shape = tuple(prediction.shape)
    if not isinstance(target, Tensor):
        if prediction.ndim > 3:
            raise _no_axis(shape, "no target")
        return -1
    if target.shape == prediction.shape or target.is_floating_point():
        same = target.shape == prediction.shape
        found = [a for a in ((1, -1) if len(shape) > 2 else (-1,)) if same and _chances(target, a)]
        if not found:
            raise ValueError(
                "of='predictions' is for one class among several: a target must have class numbers "
                f"or probabilities that add up to one, got {target.dtype} of shape "
                f"{tuple(target.shape)} for a prediction of shape {shape}; to keep numbers as they "
                "are, pass of=lambda model, batch: model(batch[0]), or of='features'"
            )
        return found[0]
    if _second(prediction, target):
        return 1
    if prediction.ndim > 2 and target.shape != prediction.shape[:-1]:
        raise _no_axis(shape, f"a target of shape {tuple(target.shape)}")
    return -1


def _chances(target: Tensor, axis: int) -> bool:
    """Whether these are probabilities of classes along the axis."""
    near = (target.double().sum(axis) - 1).abs() <= 1e-2
    return bool(near.all()) and bool((target >= 0).all())


def _no_axis(shape: tuple[int, ...], came: str) -> ValueError:
    fitting = (shape[0], *shape[2:])
    return ValueError(
        "of='predictions' must know which dimension of a prediction has the classes, got shape "
        f"{shape} with {came}: give a target of shape {fitting} or {shape[:-1]}, predict= that "
        "gives (predictions, classes), or of='features'"
    )


def _features(model: nn.Module, batch: Any, predict: Reading | None) -> Rows:
    """What the last linear layer is given, if the model returns what that layer makes of it."""
    if predict is not None:
        reading = predict
        return lambda m, b: _answered_features(reading(m, b))
    run, keys = _plain_run(model, batch), _masks(model)
    shift = _token_shift(model, batch)

    def rows(m: nn.Module, b: Any) -> Tensor:
        heads = [layer.module for layer in all_layers(m).values() if layer.kind in _HEADS]
        with _calls(heads) as calls:
            found = run(m, b)
        out = getattr(found, "logits", getattr(found, "last_hidden_state", found))
        given = next((x for x, made in reversed(calls) if made is out), out)
        return _positions(_tensor(given, "the model"), b, shift, keys)

    return rows


_HEADS = ("linear", "conv1d")


def _token_shift(model: nn.Module, batch: Any) -> int:
    """How many places after what predicts it a label stands, where every token has one."""
    named = _inputs(batch)
    labels = named.get("labels")
    tokens = isinstance(labels, Tensor) and labels.ndim == 2 and counts_any(labels)
    return label_shift(model, named, nn.CrossEntropyLoss()) if tokens else 0


def _masks(model: nn.Module, module: nn.Module | None = None) -> tuple[str, ...]:
    """What says which positions of a module's output count, the whole model's without one.

    In an encoder-decoder labels are of the decoder's tokens and the attention mask is of the
    encoder's, and both may happen to be as long.
    """
    if not _has_decoder(model):
        return "labels", "attention_mask"
    encoder: Any = getattr(model, "get_encoder", lambda: None)()
    if isinstance(encoder, nn.Module) and any(part is module for part in encoder.modules()):
        return ("attention_mask",)
    return "labels", "decoder_attention_mask"


def _has_decoder(model: nn.Module) -> bool:
    """Not of an encoder that was taken out of such a model, though it keeps the config."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    unwrap: Any = getattr(model, "get_base_model", lambda: getattr(model, "_orig_mod", model))
    return "decoder_attention_mask" in inspect.signature(unwrap().forward).parameters


def _positions(values: Tensor, batch: Any, shift: int, keys: tuple[str, ...]) -> Tensor:
    """One row for each position that counts, by the labels or the attention mask."""
    for key in keys if values.ndim == 3 else ():
        mask = _inputs(batch).get(key)
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
    if _is_pair(batch):
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
