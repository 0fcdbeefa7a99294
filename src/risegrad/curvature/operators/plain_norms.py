"""Normalizations spelled out in elementary operations, so that their second derivatives are right.

With torch 2.15, differentiating the fused layer norm forward over ``jacrev``, as curvlinops does
for the Hessian, silently loses terms: products are not symmetric, and off by 0.1 to 0.6 % in small
vision transformers and by 0.3 to 8 % in perceptrons with one norm (most in narrow ones, where the
norm has the largest part in the curvature). So do batch and instance norm on the batch's own
statistics; group norm refuses. All of them, and the RMS norm, are replaced while curvature is
measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """``(x - mean)/sqrt(var + eps) * weight + bias`` over the last dimensions."""
    over = tuple(range(-len(normalized_shape), 0))
    return _affine(_standardized(input, over, eps), weight, bias)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The same over groups of channels, the second dimension."""
    grouped = input.reshape(input.shape[0], num_groups, -1)
    plain = _standardized(grouped, (-1,), eps).reshape(input.shape)
    return _affine(plain, *_by_channel(input, weight, bias))


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """``x/sqrt(mean(x^2) + eps) * weight`` over the last dimensions."""
    over = tuple(range(-len(normalized_shape), 0))
    least = torch.finfo(input.dtype).eps if eps is None else eps
    return _affine(input * (input.square().mean(over, keepdim=True) + least).rsqrt(), weight, None)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """On the batch's own statistics over all but the channels; running ones need no help."""
    if not training:
        return functional.batch_norm(
            input, running_mean, running_var, weight, bias, False, momentum, eps
        )
    over = (0, *range(2, input.ndim))
    return _affine(_standardized(input, over, eps), *_by_channel(input, weight, bias))


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """On each example's own statistics."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    over = tuple(range(2, input.ndim))
    return _affine(_standardized(input, over, eps), *_by_channel(input, weight, bias))


def _by_channel(x: Tensor, *vectors: Tensor | None) -> list[Tensor | None]:
    shape = (1, -1, *([1] * (x.ndim - 2)))
    return [None if vector is None else vector.reshape(shape) for vector in vectors]


def _standardized(x: Tensor, over: tuple[int, ...], eps: float) -> Tensor:
    centered = x - x.mean(over, keepdim=True)
    return centered * (centered.square().mean(over, keepdim=True) + eps).rsqrt()


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else x * weight
    return scaled if bias is None else scaled + bias


def flagged(input: Tensor, requires_grad: bool = True) -> Tensor:
    """``requires_grad_`` where it may be called, and nothing inside a transform of functorch.

    Gradient checkpointing of a peft model has what its embeddings give flagged, which no transform
    allows and no derivative by the parameters needs. functorch's own calls go through.
    """
    try:
        return input.requires_grad_(requires_grad)
    except RuntimeError as error:
        if "functorch" not in str(error):
            raise
        return input


REPLACED: dict[Any, Callable[..., Tensor]] = {
    Tensor.requires_grad_: flagged,
    functional.layer_norm: layer_norm,
    functional.group_norm: group_norm,
    functional.rms_norm: rms_norm,
    functional.batch_norm: batch_norm,
    functional.instance_norm: instance_norm,
}


class PlainNorms(TorchFunctionMode):
    """While active, every call of a fused normalization runs its plain form, and a model
    may flag what it computes on its way to require gradients."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return REPLACED.get(func, func)(*args, **(kwargs or {}))
