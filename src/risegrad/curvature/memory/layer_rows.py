"""A call of a layer as rows, and whether they belong together as a memory assumes.

Row by row the outputs of a map are ``W a + b``, those of a norm ``n(x) w + b``. A class may do
something else with its weight (scale it, pad its inputs, end in an activation): its rows would then
be taken for what they are not, so one call is compared.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from risegrad.core.whole_steps import exact_products
from risegrad.curvature.memory.covered_layers import Layer

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
