"""What a model predicts for a batch: where its classes are, where labels stand, and what counts.

A batch is a pair ``(inputs, target)``, a mapping as transformers takes it, or inputs alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.overrides import TorchFunctionMode

from risegrad.core.coverage import WRAPPERS
from risegrad.core.undisturbed import Buffer, Generators, put_back, uncompiled
from risegrad.curvature.batches import IGNORED, form_of

Predict = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
"""``predict(model, batch) -> (prediction, target)``."""


class Reader:
    """Runs a model on batches of one form, and finds the predictions that count.

    Where labels stand is read off the first batch of which any counts: a model that is given labels
    calls a cross-entropy itself, and what goes in there says it. ``loss``: one that must agree with
    the model's own, where it has one; without, its loss is not looked at.
    """

    def __init__(self, model: nn.Module, batch: Any, loss: nn.Module | None = None) -> None:
        self.loss = loss
        self._shift: int | None = None
        inner: Any = unwrapped(model)
        named = isinstance(inputs_of(batch), Mapping)
        taken = inspect.signature(inner.forward).parameters if named else {}
        # A generation cache is of no use here and cannot be differentiated through.
        self._options = {"use_cache": False} if "use_cache" in taken else {}
        # An encoder that was taken out of such a model keeps the config, but has no decoder.
        self._decodes = "decoder_attention_mask" in taken and bool(
            getattr(getattr(inner, "config", None), "is_encoder_decoder", False)
        )
        # Once it is known where labels stand, the model's own loss takes memory for nothing: of a
        # large vocabulary as much as its logits. An encoder-decoder makes its inputs of them.
        spare = taken.get("labels")
        self._spare = not self._decodes and spare is not None and spare.default is None
        self._encoder = getattr(inner, "get_encoder", lambda: None)() if self._decodes else None

    def run(self, model: nn.Module, batch: Any) -> Any:
        """What the model returns."""
        inputs = inputs_of(batch)
        if isinstance(inputs, Tensor):
            return model(inputs)
        if not isinstance(inputs, Mapping):
            raise _unknown_form(batch)
        labels = inputs.get("labels")
        if self._shift is None and isinstance(labels, Tensor) and bool((labels != IGNORED).any()):
            with uncompiled(), CrossEntropies() as seen:  # compiled code would not show its calls
                out = model(**inputs, **self._options)
            with torch.no_grad():
                loss = None if is_pair(batch) else self.loss
                self._shift = _label_shift(out, labels, seen.calls, loss)
            return out
        if self._shift is not None and self._spare:
            inputs = {name: value for name, value in inputs.items() if name != "labels"}
        return model(**inputs, **self._options)

    def predict(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        """Prediction and target as the loss takes them; of classes, one row for each that counts.

        Dropped here, ignored positions cannot enter a Fisher's samples or its average.
        """
        prediction, target = logits_of(self.run(model, batch)), self._target(batch)
        if target is None:
            raise _unknown_form(batch)
        if not are_classes(prediction, target):
            return prediction, target
        if not is_pair(batch):
            return counted(prediction, target, both=-1)
        if isinstance(self.loss, nn.CrossEntropyLoss):
            return counted(prediction, target, both=1, ignored=self.loss.ignore_index)
        return prediction, target

    def rows(self, model: nn.Module, batch: Any) -> Tensor:
        """The logits of every prediction that counts, ``(predictions, classes)``.

        A target says which they are; without one, the attention mask does.
        """
        logits, target = logits_of(self.run(model, batch)), self._target(batch)
        if target is not None:
            return counted(logits, target, both=None if is_pair(batch) else -1)[0]
        if isinstance(batch, tuple) and len(batch) == 2:
            raise _unknown_form(batch)
        class_axis(logits, None)
        return self.positions(logits, batch)

    def positions(self, values: Tensor, batch: Any, module: nn.Module | None = None) -> Tensor:
        """One row for each position that counts, of the model's output or of a module's."""
        inputs = inputs_of(batch)
        for key in self._masks(module) if values.ndim == 3 and isinstance(inputs, Mapping) else ():
            mask = inputs.get(key)
            if isinstance(mask, Tensor) and mask.shape == values.shape[:2]:
                counts = mask != 0 if key != "labels" else self._aligned(mask) != IGNORED
                return values[counts]
        return flat(values)

    def _masks(self, module: nn.Module | None) -> tuple[str, ...]:
        """What says which positions count.

        In an encoder-decoder labels are of the decoder's tokens and the attention mask is of the
        encoder's, and both may happen to be as long.
        """
        if not self._decodes:
            return "labels", "attention_mask"
        inside = self._encoder.modules() if isinstance(self._encoder, nn.Module) else ()
        if any(part is module for part in inside):
            return ("attention_mask",)
        return "labels", "decoder_attention_mask"

    def _target(self, batch: Any) -> Tensor | None:
        """The target of each prediction, at its place."""
        if is_pair(batch):
            target: Tensor = batch[1]
            return target
        inputs = inputs_of(batch)
        labels = inputs.get("labels") if isinstance(inputs, Mapping) else None
        return None if labels is None else self._aligned(labels)

    def _aligned(self, labels: Tensor) -> Tensor:
        return _moved_up(labels) if self._shift else labels


def choose_predict(model: nn.Module, batch: Any, loss: nn.Module) -> Predict:
    """The way of reading that fits the batch: a pair, or a mapping with labels."""
    if is_pair(batch) or (isinstance(batch, Mapping) and "labels" in batch):
        return Reader(model, batch, loss).predict
    raise _unknown_form(batch)


def inputs_of(batch: Any) -> Any:
    """What the model is given: a batch without its target."""
    return batch[0] if isinstance(batch, tuple) and len(batch) in (1, 2) else batch


def is_pair(batch: Any) -> bool:
    """Whether a batch is inputs and a target."""
    return isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[1], Tensor)


def _unknown_form(batch: Any) -> TypeError:
    return TypeError(
        "a batch must be a pair (inputs, target), a mapping with 'labels' or, where none are "
        f"needed, inputs alone; pass predict= for another form; got {form_of(batch)}"
    )


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside what DDP, FSDP, torch.compile and peft put around it."""
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return unwrapped(model.module)
    for name in WRAPPERS - {"module"}:  # which may be a model's own
        inside = getattr(model, name, None)
        if isinstance(inside, nn.Module):
            return unwrapped(inside)
    base: Any = getattr(model, "get_base_model", None)
    return model if base is None else unwrapped(base())


def logits_of(found: Any) -> Tensor:
    """The predictions in what a model returned."""
    logits = getattr(found, "logits", found)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model returns no logits but {type(found).__name__}: pass predict=, or "
            "of='features'"
        )
    return logits


def flat(values: Tensor) -> Tensor:
    """An image of features is one row, a sequence one row for each token."""
    return values.flatten(1) if values.ndim == 4 else values.reshape(-1, values.shape[-1])


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode; the flags come back, also those that a person's own function turned on."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def as_found(
    model: nn.Module, only: Collection[tuple[nn.Module, str]] | None = None
) -> Iterator[None]:
    """Eval mode, as the model is written; modes, buffers and random states come back.

    So do tables of tokens whose rows every forward pass cuts to a norm. ``only``: the buffers to
    hold; of a quantized model all of them may be all of its weights.
    """
    generators, grad = Generators(), torch.is_grad_enabled()
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    with ExitStack() as stack:
        stack.callback(generators.put_back)
        for table in tables:
            if table.max_norm is not None:
                stack.callback(put_back, table.weight, table.weight.detach().clone())
        for module in model.modules():
            for key, tensor in module._buffers.items():
                if only is None or (module, key) in only:
                    held = None if tensor is None else tensor.clone()
                    stack.callback(Buffer(module, key, tensor, held).put_back)
        stack.enter_context(torch.inference_mode(False))  # or nothing could be differentiated
        stack.enter_context(torch.set_grad_enabled(grad))  # leaving it turns gradients on
        stack.enter_context(uncompiled())
        stack.enter_context(evaluating(model))
        yield


# --- classes ---


def are_classes(prediction: Tensor, target: Tensor) -> bool:
    """Whether a target has class numbers, and not numbers or probabilities."""
    return not target.is_floating_point() and target.shape != prediction.shape


def counted(
    prediction: Tensor, target: Any, both: int | None = None, ignored: int = IGNORED
) -> tuple[Tensor, Any]:
    """Predictions and targets that count, one row for each; ``both`` as in ``class_axis``."""
    rows = prediction.movedim(class_axis(prediction, target, both), -1)
    if isinstance(target, Tensor) and target.shape == rows.shape[:-1]:
        counts = target != ignored
        return rows[counts], target[counts]
    return rows.reshape(-1, rows.shape[-1]), target


def class_axis(prediction: Tensor, target: Any, both: int | None = None) -> int:
    """The dimension of the classes: last or, where the target says so, second, as torch's own loss
    takes them. ``both``: which it is where both fit; None: that is an error.
    """
    shape = tuple(prediction.shape)
    if not isinstance(target, Tensor):
        if prediction.ndim > 3:
            raise _no_axis(shape, "no target")
        return -1
    if not are_classes(prediction, target):
        return _chances_axis(prediction, target)
    fitting = axes(prediction, target)
    if len(fitting) == 2 and both is not None:
        return both
    if prediction.ndim > 2 and len(fitting) != 1:
        raise _no_axis(shape, f"a target of shape {tuple(target.shape)}")
    return fitting[0] if fitting else -1


def axes(values: Tensor, target: Tensor) -> list[int]:
    """Where classes may stand by the shape of a target: last, second, or both."""
    shape = values.shape
    second = len(shape) > 2 and target.shape == (shape[0], *shape[2:])
    return [-1] * (target.shape == shape[:-1]) + [1] * second


def _chances_axis(prediction: Tensor, target: Tensor) -> int:
    """Where the probabilities of classes add up to one."""
    if target.shape == prediction.shape:
        for axis in (1, -1) if prediction.ndim > 2 else (-1,):
            near = (target.double().sum(axis) - 1).abs() <= 1e-2
            if bool(near.all()) and bool((target >= 0).all()):
                return axis
    raise ValueError(
        "of='predictions' is for one class among several: a target must have class numbers "
        f"or probabilities that add up to one, got {target.dtype} of shape "
        f"{tuple(target.shape)} for a prediction of shape {tuple(prediction.shape)}; to keep "
        "numbers as they are, pass of=lambda model, batch: model(batch[0]), or of='features'"
    )


def _no_axis(shape: tuple[int, ...], came: str) -> ValueError:
    fitting = (shape[0], *shape[2:])
    return ValueError(
        "a target must tell which dimension of a prediction has the classes, got shape "
        f"{shape} with {came}: give a target of shape {fitting} or {shape[:-1]} (not both), or "
        "predict= that gives (predictions, classes)"
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


# --- labels ---


class CrossEntropies(TorchFunctionMode):
    """The arguments of every cross-entropy that is called while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, Any]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is cross_entropy:
            self.calls.append(inspect.signature(cross_entropy).bind(*args, **given).arguments)
        return func(*args, **given)


def _label_shift(
    out: Any, labels: Tensor, calls: list[dict[str, Any]], loss: nn.Module | None
) -> int:
    """How many places after what predicts it a label stands.

    Names do not tell: ``LlamaForCausalLM`` moves its labels on, ``BartForCausalLM`` does not. A
    model that shows no cross-entropy of its labels is judged by the loss that it returns.
    """
    own, logits = getattr(out, "loss", None), getattr(out, "logits", None)
    tokens = labels.ndim == 2 and not labels.is_floating_point()
    shifts = (0, 1) if tokens and isinstance(logits, Tensor) and logits.ndim > 2 else (0,)
    shown = _shown(labels, calls, tokens)
    if shown is not None:
        shifts, own = (shown[0],), shown[1]
    if own is None or (loss is None and len(shifts) == 1) or not (shown is None or own.isfinite()):
        return shifts[0]
    judge = nn.CrossEntropyLoss() if loss is None else loss
    values = [_value(judge, logits_of(out), labels, shift) for shift in shifts]
    return shifts[_nearest(values, own, type(judge).__name__)]


def _shown(labels: Tensor, calls: list[dict[str, Any]], tokens: bool) -> tuple[int, Tensor] | None:
    """The shift of the cross-entropy that was called with these labels, and its mean."""
    places = [(0, labels)]
    if tokens:
        places += [(1, _moved_up(labels)), (1, labels[:, 1:])]
    for call in calls:
        target = call["target"].reshape(-1).to(labels.device)
        for shift, there in places:
            if torch.equal(target, there.reshape(-1)):
                options = {k: v for k, v in call.items() if k not in ("size_average", "reduce")}
                options |= {"input": _wide(call["input"]), "reduction": "mean"}
                return shift, cross_entropy(**options)
    return None


def _value(loss: nn.Module, logits: Tensor, labels: Tensor, shift: int) -> float:
    target = _moved_up(labels) if shift else labels
    if are_classes(logits, target):
        logits, target = counted(logits, target, both=-1)
    value: float = loss(_wide(logits), target).mean().item()
    return value


def _nearest(values: list[float], own: Tensor, name: str) -> int:
    """Which of the values is the model's own loss, as far as its dtype tells them apart."""
    size, eps = max(1.0, abs(own.item())), torch.finfo(own.dtype).eps
    off = [math.inf if math.isnan(value) else abs(value - own.item()) for value in values]
    best = off.index(min(off))
    # The nearest, not the first that is near: those of an untrained model are all alike.
    if off[best] <= max(1e-3, 4 * eps) * size and not sum(o <= eps * size for o in off) > 1:
        return best
    shown = " or ".join(f"{value:.4g}" for value in values)
    raise ValueError(
        f"the model's own loss is {own.item():.4g}, {name} of its logits gives {shown}: "
        "pass predict= (and loss=, where there is one) that give the loss you mean"
    )


def _moved_up(labels: Tensor) -> Tensor:
    """Each label at the place of the one before it, which predicts it."""
    return pad(labels, (0, 1), value=IGNORED)[..., 1:]


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
