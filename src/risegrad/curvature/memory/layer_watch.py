"""Hooks that see each layer's inputs and the gradients at its output.

A forward hook passes the output through ``Seen``, an identity with one more input that wants a
gradient. So every watched output has a gradient, also in a model that is frozen from end to end,
and asking autograd for the gradient of that one input visits all of them and computes none of any
weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from risegrad.core.whole_steps import exact_products
from risegrad.curvature.memory.covered_layers import Layer
from risegrad.curvature.memory.layer_rows import (
    at_least_float32,
    input_rows,
    is_plain_map,
    norm_axis,
    norm_parts,
    output_rows,
)
from risegrad.curvature.memory.many_ranks import Ranks
from risegrad.curvature.memory.second_moments import (
    GatheredMoments,
    Moments,
    RandomColumns,
    Squares,
    add_up,
)

Callback = Callable[[Tensor], None]

NOTHING = 1e-5
"""A row whose gradient is below this share of the largest of its example is rounding (a first
token's query has no gradient, but whether that comes out as zero depends on the order of the sums).
Not of the whole batch: what is kept of an example must not depend on its neighbours."""


class Seen(torch.autograd.Function):
    """The identity; ``callback`` gets the gradient that comes back.

    A copy and no view: models may change the output in place (``ReLU(inplace=True)``).
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, thread: Tensor, callback: Callback) -> Tensor:
        """Pass the output on, so that the backward pass comes by here."""
        ctx.callback = callback
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Hand the gradient to the callback and pass it on unchanged."""
        callback, ctx.callback = ctx.callback, None  # it holds the layer's input
        callback(grads[0])
        return grads[0], None, None


class Watched:
    """The moments of one layer as they grow."""

    def __init__(self, layer: Layer, rank: int | None, random: RandomColumns) -> None:
        inputs, outputs = layer.sizes
        self.layer = layer
        self.called = self.differentiable = self.reached = False
        self.plain: bool | None = None
        """Whether the layer computes what a memory of it assumes; None before its first call."""
        self.axis = -1
        """Of a norm, where its weights stand."""
        self.rows = 0
        self.inputs: Moments
        self.outputs: Moments
        if layer.kind in ("embedding", "norm"):
            self.inputs = Squares(inputs)
        else:
            self.inputs = GatheredMoments(inputs, rank, random)
        self.outputs = (
            Squares(outputs) if layer.kind == "norm" else GatheredMoments(outputs, rank, random)
        )

    def compare(self, x: Tensor, out: Tensor) -> None:
        """At the first call, find out whether the layer is the map that it is taken for."""
        if self.plain is not None:
            return
        if self.layer.kind == "norm":
            axis = norm_axis(self.layer.module, x)
            self.plain, self.axis = axis is not None, -1 if axis is None else axis
        else:
            self.plain = is_plain_map(self.layer, x, out)

    def add(self, x: Tensor, version: int, gradient: Tensor) -> None:
        """Rows of one call: ``x`` went in, ``gradient`` came back to what went out."""
        self.reached = True
        if not self.plain:
            return
        if x._version != version:
            raise RuntimeError(
                f"the input of layer {self.layer.name!r} was changed in place after the layer used "
                "it: its second moments cannot be taken"
            )
        gradient = at_least_float32(gradient)
        with exact_products(gradient):
            if self.layer.kind == "norm":
                self._add_norm(x, gradient)
            else:
                self._add_map(x, gradient)

    def _add_map(self, x: Tensor, gradient: Tensor) -> None:
        a, d = input_rows(self.layer, x), output_rows(self.layer, gradient)
        # Where no gradient comes back (padding, tokens that nobody reads) nothing is kept.
        sizes = d.abs().amax(-1)
        counts = ~(sizes <= NOTHING * sizes.amax(1, keepdim=True)).flatten()
        d = d.flatten(0, 1)  # not a number counts, and is found later
        if not bool(counts.all()):
            a, d = a[counts], d[counts]
        self.rows += len(d)
        self.outputs.add(d)
        if isinstance(self.inputs, Squares):
            self.inputs.count(a, d)
        else:
            self.inputs.add(a.to(d))

    def _add_norm(self, x: Tensor, gradient: Tensor) -> None:
        """``y = n(x) w + b``: the gradient of ``w`` is that of ``y`` times ``n(x)``."""
        d = gradient.movedim(self.axis, -1).flatten(0, -2)
        normed = norm_parts(self.layer.module, x)[1]
        self.rows += len(d)
        self.outputs.add(d)
        self.inputs.add(d * normed.movedim(self.axis, -1).flatten(0, -2))


def join(layers: Mapping[str, Watched], ranks: Ranks, device: torch.device) -> None:
    """What all processes have seen of each layer, in all of them."""
    own = [(w.called, w.differentiable, w.reached, w.plain, w.rows) for w in layers.values()]
    everywhere = zip(*ranks.gather(own), strict=True)
    for watched, seen in zip(layers.values(), everywhere, strict=True):
        called, differentiable, reached, plain, rows = zip(*seen, strict=True)
        watched.called, watched.reached, watched.rows = any(called), any(reached), sum(rows)
        watched.differentiable = any(differentiable)
        watched.plain = next((kind for kind in (False, True) if kind in plain), None)
    add_up([t for w in layers.values() for t in (w.inputs, w.outputs)], ranks, device)


@contextmanager
def watching(layers: Mapping[str, Watched], thread: Tensor) -> Iterator[None]:
    """While active, every call of a layer with gradients on is watched."""
    with ExitStack() as stack:
        for watched in layers.values():
            hook = _hook(watched, thread)
            handle = watched.layer.module.register_forward_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        yield


def _hook(watched: Watched, thread: Tensor) -> Callable[..., Tensor | None]:
    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Tensor | None:
        if isinstance(out, Tensor) and not out.numel():
            return None  # an expert without tokens: as if it had not been called
        watched.called = True
        if not torch.is_grad_enabled():
            return None
        watched.differentiable = True
        x = args[0] if args else next(iter(kwargs.values()))
        if not isinstance(out, Tensor) or not isinstance(x, Tensor):
            raise TypeError(
                f"layer {watched.layer.name!r} must take a tensor and give one, got "
                f"{type(x).__name__} and {type(out).__name__}"
            )
        x = x.detach()
        watched.compare(x, out)
        version = x._version
        seen: Tensor = Seen.apply(out, thread, lambda gradient: watched.add(x, version, gradient))
        return seen

    return see
