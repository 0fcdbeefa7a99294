"""A loss over fixed batches: what the model must keep, or what it is to learn.

``L = sum_i w_i loss_i`` over the batches, with ``w_i`` the batch's part of all examples for a loss
that averages, and 1 for one that sums. Value, gradient and every curvature product use this one
definition, so that a prediction and the truth speak of the same number.

The model is measured in eval mode: dropout off, batch norm on its running statistics. Only so is
the loss one function of the parameters, the same at every call, and its curvature symmetric.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from risegrad.core.blocks import listing
from risegrad.core.shapers import Shaper
from risegrad.curvature.batches import check_batches, check_same_form, moved, size_of
from risegrad.curvature.space import Space, make_space
from risegrad.curvature.targets import Predict, check_labels, choose_predict, evaluating


def layer_norm(given: Any) -> Tensor:
    """``(x - mean)/sqrt(var + eps) * weight + bias`` over the last dimensions."""
    over = tuple(range(-len(given.normalized_shape), 0))
    return _affine(_standardized(given.input, over, given.eps), given.weight, given.bias)


def group_norm(given: Any) -> Tensor:
    """The same over groups of channels, the second dimension."""
    x = given.input
    plain = _standardized(x.reshape(x.shape[0], given.num_groups, -1), (-1,), given.eps)
    return _affine(plain.reshape(x.shape), *_by_channel(x, given.weight, given.bias))


def rms_norm(given: Any) -> Tensor:
    """``x/sqrt(mean(x^2) + eps) * weight`` over the last dimensions."""
    x, over = given.input, tuple(range(-len(given.normalized_shape), 0))
    least = torch.finfo(x.dtype).eps if given.eps is None else given.eps
    return _affine(x * (x.square().mean(over, keepdim=True) + least).rsqrt(), given.weight, None)


def batch_norm(given: Any) -> Tensor:
    """On the statistics of the batch, or of each example; running ones need no help."""
    x, single = given.input, hasattr(given, "use_input_stats")
    if not (given.use_input_stats if single else given.training):
        running = given.running_mean, given.running_var
        return functional.batch_norm(x, *running, given.weight, given.bias, eps=given.eps)
    over = tuple(range(2, x.ndim)) if single else (0, *range(2, x.ndim))
    return _affine(_standardized(x, over, given.eps), *_by_channel(x, given.weight, given.bias))


def _by_channel(x: Tensor, *vectors: Tensor | None) -> list[Tensor | None]:
    shape = (1, -1, *([1] * (x.ndim - 2)))
    return [None if vector is None else vector.reshape(shape) for vector in vectors]


def _standardized(x: Tensor, over: tuple[int, ...], eps: float) -> Tensor:
    centered = x - x.mean(over, keepdim=True)
    return centered * (centered.square().mean(over, keepdim=True) + eps).rsqrt()


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias


PLAIN: dict[Any, Callable[[Any], Tensor]] = {
    functional.layer_norm: layer_norm,
    functional.group_norm: group_norm,
    functional.rms_norm: rms_norm,
    functional.batch_norm: batch_norm,
    functional.instance_norm: batch_norm,
}
"""From the arguments of a fused normalization, by name, to what its plain form gives."""


class PlainNorms(TorchFunctionMode):
    """While active, every call of a fused normalization runs its plain form: the forward-mode
    derivatives of some fused ones are wrong. And ``requires_grad_`` does nothing inside a transform
    of functorch, which does not allow it: gradient checkpointing of a peft model calls it, and no
    derivative by the parameters needs it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in PLAIN:
            given = inspect.signature(func).bind(*args, **(kwargs or {}))
            given.apply_defaults()
            return PLAIN[func](SimpleNamespace(**given.arguments))
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if func is not Tensor.requires_grad_ or "functorch" not in str(error):
                raise
            return args[0]


Batches = Iterable[Any]


class Predictor(nn.Module):
    """The model as curvlinops needs it: one argument in, the prediction out."""

    def __init__(self, model: nn.Module, predict: Predict) -> None:
        super().__init__()
        self.model = model
        self.predict = predict

    def forward(self, item: dict[str, Any]) -> Tensor:
        """The model's prediction for one batch."""
        return self.predict(self.model, item["batch"])[0]


class MeanLoss(nn.Module):
    """A plain function of (prediction, target) as a loss module that averages over its batch."""

    reduction = "mean"

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss of a prediction."""
        return self.function(prediction, target)


Loss = nn.Module | Callable[[Tensor, Tensor], Tensor]


class Objective:
    """Batches of one form, held in memory in a fixed order."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        loss: Loss | None = None,
        predict: Predict | None = None,
        what: str = "historical",
    ) -> None:
        self.model, self.what = model, what
        self.loss = check_loss(loss)
        device = next(model.parameters()).device
        self.batches = [moved(batch, device) for batch in check_batches(what, batches)]
        if not self.batches:
            raise ValueError(f"{what} must hold at least one batch, got none")
        check_same_form(self.batches, what)
        self.sizes = [size_of(batch) for batch in self.batches]
        with measuring(model):
            self.predict = predict or choose_predict(model, self.batches[0], self.loss)
            self.targets = [self._target(batch) for batch in self.batches]
        self.predictor = Predictor(model, self.predict)

    def _target(self, batch: Any) -> Tensor:
        try:
            prediction, target = self.predict(self.model, batch)
        except IndexError as error:  # from within the model, which computes its own loss
            raise ValueError(
                f"{self.what} batches must have labels and tokens within the model's range, got "
                f"others: {error}"
            ) from error
        check_labels(prediction, target, self.loss, self.what)
        if not target.numel():
            raise ValueError(
                f"{self.what} batches must each have a label other than -100, got one without"
            )
        return target

    @property
    def weights(self) -> list[float]:
        """The weight of each batch in the whole loss."""
        total = sum(self.sizes) if self.loss.reduction == "mean" else 1
        return [size / total if self.loss.reduction == "mean" else 1.0 for size in self.sizes]

    def only(self, number: int) -> Objective:
        """The loss of one batch alone."""
        alone = copy(self)
        alone.batches, alone.sizes = [self.batches[number]], [self.sizes[number]]
        alone.targets = [self.targets[number]]
        return alone

    def data(self) -> list[tuple[dict[str, Any], Tensor]]:
        """Pairs as curvlinops reads them; the batch is put into a mapping, whatever its form."""
        sized = zip(self.batches, self.sizes, self.targets, strict=True)
        return [({"batch": batch, "size": size}, target) for batch, size, target in sized]

    def loss_of(self, number: int) -> Tensor:
        """The loss of one batch: a finite scalar, or an error."""
        prediction = self.predict(self.model, self.batches[number])[0]
        found: Tensor = self.loss(prediction, self.targets[number])
        if found.ndim != 0:
            raise ValueError(
                f"loss must be a scalar, got shape {tuple(found.shape)}: use a loss that averages "
                "over the batch, such as CrossEntropyLoss(reduction='mean')"
            )
        return found

    def value(self) -> float:
        """The loss in float64, without gradients."""
        with measuring(self.model), torch.no_grad():
            losses = [self.loss_of(number).double().item() for number in range(len(self.batches))]
        return sum(w * loss for w, loss in zip(self.weights, losses, strict=True))

    def gradient(self, space: Space, parameters: Mapping[str, Tensor]) -> Tensor:
        """The gradient as a flat vector; a parameter without one counts as zero."""
        return self.gradient_and_unused(space, parameters)[0]

    def gradient_and_unused(
        self, space: Space, parameters: Mapping[str, Tensor]
    ) -> tuple[Tensor, list[str]]:
        """The gradient, and the parameters that no batch's loss depends on."""
        wanted = [parameters[name] for name in space.names]
        total = torch.zeros(space.d, dtype=space.dtype, device=space.device)
        unused = set(space.names)
        for number, weight in enumerate(self.weights):
            with measuring(self.model):
                loss = self.loss_of(number)
                if not loss.requires_grad:
                    raise ValueError(f"the {self.what} loss does not depend on any parameter")
                parts = torch.autograd.grad(loss, wanted, allow_unused=True)
            unused -= {n for n, part in zip(space.names, parts, strict=True) if part is not None}
            filled = [torch.zeros_like(p) if g is None else g
                      for p, g in zip(wanted, parts, strict=True)]  # fmt: skip
            total += weight * space.flat(filled)
        if not bool(total.isfinite().all()):
            raise FloatingPointError(f"the gradient of the {self.what} loss is not finite")
        return total, [name for name in space.names if name in unused]

    def step(
        self, space: Space, parameters: Mapping[str, Tensor], shaper: Shaper
    ) -> tuple[Space, Tensor]:
        """The part of a space that a step on this loss moves, and its gradient there.

        Who gets no gradient takes no part in a step, so it is in no block: as under ``attach``.
        """
        gradient, unused = self.gradient_and_unused(space, parameters)
        if not unused:
            return space, gradient
        if len(unused) == len(space.names):
            raise ValueError(f"no gradient of the {self.what} loss reaches {listing(unused)}")
        space = make_space(parameters, shaper, still=unused)
        return space, self.gradient(space, parameters)


@contextmanager
def measuring(model: nn.Module) -> Iterator[None]:
    """Eval mode, and attention and norms that can be differentiated twice."""
    # Fused attention has no forward-mode derivative; the plain form is made of parts that do.
    with evaluating(model), sdpa_kernel(SDPBackend.MATH), PlainNorms():
        yield


def check_loss(loss: Loss | None) -> nn.Module:
    """The loss as a module that says how it reduces."""
    if loss is None:
        return nn.CrossEntropyLoss()
    if not isinstance(loss, nn.Module):
        if not callable(loss):
            raise TypeError(f"loss must be a module or a function, got {type(loss).__name__}")
        return MeanLoss(loss)
    if getattr(loss, "reduction", None) not in ("mean", "sum"):
        raise ValueError(
            "loss must be a scalar: its reduction must be 'mean' or 'sum', "
            f"got {getattr(loss, 'reduction', None)!r}"
        )
    return loss
