"""Hooks that see each layer's inputs and the gradients at its output.

A forward hook passes the output through ``Seen``, an identity with one more input that wants a
gradient. So every watched output has a gradient, also in a model that is frozen from end to end,
and asking autograd for the gradient of that one input visits all of them and computes none of any
weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from risegrad.core.shards import exact_products
from risegrad.memory.layers import Layer
from risegrad.memory.moments import GatheredMoments, Moments, RandomColumns, Squares, add_up
from risegrad.memory.ranks import Ranks

TOLERANCES = {torch.float64: 1e-5, torch.float32: 5e-3}
"""How far outputs may be from the plain map, as a share of their norm. Wide: a device may multiply
float32 with fewer digits, and what is meant to be found is far larger."""
COARSE = 5e-2
"""The same for all shorter numbers."""
PLAIN = (nn.Linear, nn.Conv2d, nn.Embedding)


def output_rows(layer: Layer, out: Tensor) -> Tensor:
    """Outputs, or gradients there, as (examples, rows of each, numbers)."""
    if layer.kind == "conv2d":
        images = out.movedim(-3, -1).flatten(-3, -2)
        return images.reshape(-1, *images.shape[-2:])
    return out.reshape(-1, 1, out.shape[-1]) if out.ndim < 3 else out.flatten(1, -2)


def input_rows(layer: Layer, x: Tensor) -> Tensor:
    """Inputs in the order of the outputs' rows, (rows, numbers); of a table, the tokens."""
    if layer.kind == "embedding":
        return x.reshape(-1)
    if layer.kind == "conv2d":
        conv: Any = layer.base
        images = x.reshape(-1, *x.shape[-3:])
        padded = _padded(conv, images)
        patches = functional.unfold(padded, conv.kernel_size, conv.dilation, 0, conv.stride)
        return patches.movedim(1, -1).flatten(0, 1)
    return x.reshape(-1, x.shape[-1])


def _padded(conv: Any, images: Tensor) -> Tensor:
    if conv.padding_mode == "zeros" and not isinstance(conv.padding, str):
        # Not the list that torch made at the beginning: dilated networks set the padding later.
        return functional.pad(images, [n for n in reversed(conv.padding) for _ in range(2)])
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    return functional.pad(images, conv._reversed_padding_repeated_twice, mode=mode)


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in float32, or in float64 if it was."""
    return x if x.dtype == torch.float64 else x.float()


@torch.no_grad()
def is_plain_map(layer: Layer, x: Tensor, out: Tensor) -> bool:
    """Whether ``out``, or what the layer under a LoRA makes of ``x``, is ``W a + b``.

    True without looking where the class is torch's own, and where it cannot be told: packed
    weights are of quantized layers, which compute ``W a``.
    """
    if not (_has_own_forward(layer) and _is_readable(layer, x)):
        return True
    made = out if layer.module is layer.base else layer.base(x)
    if not isinstance(made, Tensor):
        return False
    with exact_products(x):
        expected = _plain_rows(layer, x)
        found = output_rows(layer, made).flatten(0, 1)
        return expected is not None and _is_near(found, expected, (x, made, layer.base.weight))


def _has_own_forward(layer: Layer) -> bool:
    """Also of ``Conv1D``, which is known by its name; one that says what it acts as is trusted."""
    if hasattr(layer.base, "acts_as"):
        return False
    own: Any = type(layer.base)
    known: Any = next((kind for kind in PLAIN if issubclass(own, kind)), None)
    if known is nn.Conv2d and own._conv_forward is not known._conv_forward:
        return True
    return known is None or own.forward is not known.forward


def _is_readable(layer: Layer, x: Tensor) -> bool:
    weight: Any = layer.base.weight
    floats = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.dtype in floats
        and weight.device == x.device
        and tuple(weight.shape) == layer.shape
    )


def _plain_rows(layer: Layer, x: Tensor) -> Tensor | None:
    """``W a + b``; None if the input is not one of such a map."""
    base: Any = layer.base
    weight, rows = at_least_float32(base.weight), input_rows(layer, x)
    if layer.kind == "embedding":
        if rows.is_floating_point() or int(rows.min()) < 0 or int(rows.max()) >= len(weight):
            return None
        return weight[rows]
    matrix = weight if layer.kind == "conv1d" else weight.flatten(1).T
    if rows.shape[1] != len(matrix):
        return None
    made = rows.to(weight) @ matrix
    return made if getattr(base, "bias", None) is None else made + base.bias


def _is_near(found: Tensor, expected: Tensor, like: tuple[Any, ...]) -> bool:
    if found.shape != expected.shape:
        return False
    share = max(TOLERANCES.get(x.dtype, COARSE) for x in like if x.is_floating_point())
    found, expected = at_least_float32(found), at_least_float32(expected)
    # Not "is it above": what is not a number is found, and told, elsewhere.
    return not bool((found - expected).norm() > share * expected.norm())


@torch.no_grad()
def norm_axis(module: nn.Module, x: Tensor) -> int | None:
    """The dimension along which a norm's weights stand; None if it is not ``n(x) w + b``.

    Names do not tell it, nor do sizes where two dimensions have one: other weights do.
    """
    size = len(cast(Tensor, module.weight))
    with exact_products(x):
        none, normed = norm_parts(module, x)
        # Below zero too, or an activation behind the norm would not show.
        weight = torch.linspace(-1, 1, size, dtype=normed.dtype, device=x.device)
        shift = weight.flip(0) if getattr(module, "bias", None) is not None else 0 * weight
        found = _called_with(module, x, weight, shift)
        for axis in reversed(range(x.ndim)):
            if found.shape[axis] == size:
                view = [size if at == axis else 1 for at in range(x.ndim)]
                expected = none + normed * weight.view(view) + shift.view(view)
                if _is_near(found, expected, (x,)):
                    return axis
    return None


def norm_parts(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """A norm's output with all weights at zero, and what weights of one add to it.

    Some norms scale by ``1 + w``.
    """
    zeros = torch.zeros(len(cast(Tensor, module.weight)), device=x.device)
    none = _called_with(module, x, zeros, zeros)
    return none, _called_with(module, x, zeros + 1, zeros) - none


def _called_with(module: nn.Module, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A norm's output with these weights, in float32 at least."""
    x = at_least_float32(x)
    values = {name: b.to(x) for name, b in module.named_buffers() if b.is_floating_point()}
    for name, _ in module.named_parameters():
        values[name] = (weight if name == "weight" else bias).to(x)
    inside = {f"norm.{name}": value for name, value in values.items()}
    found: Tensor = functional_call(_Bare(module), inside, (x,))
    return found


class _Bare(nn.Module):
    """A norm without its hooks: FSDP2's would put its own weights in the place of those given."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm: Any = norm

    def forward(self, x: Tensor) -> Tensor:
        """What the norm makes of ``x``."""
        found: Tensor = self.norm.forward(x)
        return found


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
                f"layer {watched.layer.name!r} must take a tensor and return one, got "
                f"{type(x).__name__} and {type(out).__name__}"
            )
        x = x.detach()
        watched.compare(x, out)
        version = x._version
        seen: Tensor = Seen.apply(out, thread, lambda gradient: watched.add(x, version, gradient))
        return seen

    return see
