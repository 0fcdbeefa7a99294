"""From a layer's memory to the coordinates of each parameter.

A layer moves by ``dW``, and its damage is ``tr(D dW S dW')``. A LoRA moves it by
``dW = s (dB A + B dA)``: so ``A`` has ``s^2 B'DB`` on its left and ``S`` on its right, ``B`` has
``D`` and ``s^2 A S A'``. Those follow from the values of now and are small (r x r); the large
factors never change, so their eigenpairs are computed once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from risegrad.core.blocks import listing
from risegrad.core.shards import exact_products, gathered
from risegrad.memory.factor import Diagonal, Side
from risegrad.memory.layers import PAIR, LayerMemory, Role, named_parameters, role_of, variants_of

Named = Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]
MAGNITUDE = "lora_magnitude_vector"
"""What peft calls DoRA's lengths of columns."""


@dataclass(frozen=True)
class ParameterSides:
    """The curvature ``right (x) left`` of one parameter; ``transposed`` if stored as (in, out).

    ``group``: parameters that are filtered by one standard and so have one norm to be matched: the
    weight and the bias of a layer. LoRA's ``A`` and ``B`` are groups of their own.
    """

    left: Side
    right: Side
    group: str
    transposed: bool = False

    def matrix(self, x: Tensor) -> Tensor:
        """A tensor in the parameter's shape as the matrix that both sides act on."""
        if x.ndim == 1:
            return x[:, None]
        return x.T if self.transposed else x.flatten(1)

    def restored(self, matrix: Tensor, shape: torch.Size) -> Tensor:
        """The matrix in the shape of the parameter again."""
        return (matrix.T if self.transposed and len(shape) == 2 else matrix).reshape(shape)

    def filtered(self, x: Tensor, damping: float, power: float = -1.0) -> Tensor:
        """``(L/t + damping)^power X (R/t + damping)^power`` in the shape of ``x``."""
        with exact_products(x, self.left.like):
            half = self.left.filtered(self.matrix(x), damping, power)
            return self.restored(self.right.filtered_right(half, damping, power), x.shape)

    def quadratic(self, x: Tensor) -> Tensor:
        """``tr(L X R X')``: twice the damage of moving the parameter by ``x``."""
        with exact_products(x, self.left.like):
            moved = self.matrix(x)
            turned = self.right.product(moved.T).T
            return (self.left.product(moved) * turned.to(self.left.like)).sum()

    def effective_dimension(self, damping: float) -> float:
        """The product of the effective dimensions of both sides."""
        return self.left.effective_dimension(damping) * self.right.effective_dimension(damping)


@dataclass(frozen=True)
class Way:
    """Where the sides of a parameter come from: of a LoRA one of them moves with its ``other``."""

    left: Side
    right: Side
    group: str
    transposed: bool = False
    other: Tensor | None = None
    """The matrix that a LoRA's own one is multiplied with."""
    first: bool = False
    """Whether it is ``A``, and so has ``B`` on its left."""
    scale: float = 1.0

    def now(self) -> ParameterSides:
        """The sides at the present value of ``other``."""
        left, right = self.left, self.right
        if self.other is not None and self.first:
            left = left.compressed(seen(self.other, True).to(left.like) * self.scale)
        elif self.other is not None:
            right = right.compressed(seen(self.other, False).to(right.like) * self.scale)
        return ParameterSides(left, right, self.group, self.transposed)


def seen(other: Tensor, first: bool) -> Tensor:
    """The columns through which a LoRA's ``A`` (``first``) or ``B`` moves the layer."""
    flat = gathered(other.detach()).flatten(1)
    return flat if first else flat.T


class Bound:
    """A memory tied to the parameters of one model; ``now()`` gives the sides at present values.

    ``chosen`` are the names to look up; without it those that are trained. Named parameters do not
    tell the scale ``s`` of a LoRA: it is taken to be 1. Filters do not depend on it; ``quadratic``
    and the mean of a side are then too small by ``s^2``.
    """

    def __init__(
        self,
        memory: Mapping[str, LayerMemory],
        model: nn.Module | Named,
        chosen: Collection[str] | None = None,
    ) -> None:
        named, self._scalings, self._variants = _read(model)
        self._memory = memory
        self._moved: dict[tuple[str, str, torch.device], Side] = {}
        self._tensors = {role_of(name): tensor for name, tensor in named.items()}
        self.ways: dict[str, Way] = {}
        """Of every covered parameter; ``now`` follows them."""
        self.uncovered: list[str] = []
        """Trained parameters that the memory says nothing of: train them as they are."""
        for name, tensor in named.items():
            if tensor.requires_grad if chosen is None else name in chosen:
                way = self._way(name, tensor)
                if way is None:
                    self.uncovered.append(name)
                else:
                    self.ways[name] = way
        if not self.ways:
            raise ValueError(
                "the memory covers no trained parameter of the model: it knows the layers "
                f"{listing([*memory])}, the model trains {listing(self.uncovered) or 'nothing'}"
            )

    @property
    def covered(self) -> list[str]:
        """The names of the parameters that the memory covers."""
        return list(self.ways)

    @property
    def absent(self) -> list[str]:
        """Remembered layers of which the model, or what was given of it, has no parameter."""
        there = {role.layer for role in self._tensors}
        return [layer for layer in self._memory if layer not in there]

    def now(self) -> dict[str, ParameterSides]:
        """The sides of every covered parameter, at the adapters' present values."""
        return {name: self.of(name) for name in self.ways}

    def of(self, name: str) -> ParameterSides:
        """The sides of one covered parameter, now."""
        with torch.no_grad(), exact_products(self._tensors[role_of(name)]):
            return self.ways[name].now()

    def _way(self, name: str, tensor: Tensor) -> Way | None:
        role = role_of(name)
        layer = self._memory.get(role.layer)
        if layer is None:
            return None
        if role.part in PAIR and layer.kind != "norm":
            return self._pair(name, role, layer, tensor)
        if role.part not in ("weight", "bias", "lora_B.bias"):
            return None
        check_shape(name, tensor, role.part, layer)
        return self._whole(role, layer, tensor.device)

    def _whole(self, role: Role, layer: LayerMemory, device: torch.device) -> Way:
        outputs, inputs = (self._side(role.layer, part, device) for part in ("outputs", "inputs"))
        if layer.kind == "norm":
            own = inputs if role.part == "weight" else Diagonal(_values(outputs), inputs.mean)
            return Way(own, _one(1.0, own), role.layer)
        if role.part == "weight":
            transposed = layer.kind in ("conv1d", "embedding")
            return Way(outputs, inputs, role.layer, transposed)
        scale = self._scalings.get((role.layer, role.adapter), 1.0)
        left = outputs if scale == 1 else outputs.scaled(scale**2)
        return Way(left, _one(inputs.mean, left), role.layer)

    def _pair(self, name: str, role: Role, layer: LayerMemory, tensor: Tensor) -> Way | None:
        other = self._tensors.get(Role(role.layer, PAIR[1 - PAIR.index(role.part)], role.adapter))
        if other is None or (role.layer, role.adapter) in self._variants:
            return None
        scale = self._scalings.get((role.layer, role.adapter), 1.0)
        left, right = (self._side(role.layer, p, tensor.device) for p in ("outputs", "inputs"))
        check_shape(name, tensor, role.part, layer)
        first = role.part == PAIR[0]
        return Way(left, right, name, other=other, first=first, scale=scale)

    def _side(self, layer: str, part: str, device: torch.device) -> Side:
        key = (layer, part, device)
        if key not in self._moved:
            self._moved[key] = getattr(self._memory[layer], part).to(device)
        return self._moved[key]


Adapters = set[tuple[str, str]]
"""Layers and adapters."""


def _read(
    model: nn.Module | Named,
) -> tuple[dict[str, Tensor], dict[tuple[str, str], float], Adapters]:
    if isinstance(model, nn.Module):
        return named_parameters(model), scalings(model), lora_variants(model)
    # Without modules the scale of a LoRA is not known; no filter depends on it.
    named = dict(model.items() if isinstance(model, Mapping) else model)
    return named, {}, _variants_by_name(named)


def lora_variants(model: nn.Module) -> Adapters:
    """Every LoRA whose weight is not the sum of W and BA, such as DoRA and aLoRA."""
    found = _variants_by_name(named_parameters(model))
    for name, module in model.named_modules():
        layer = role_of(f"{name}.weight").layer
        found |= {(layer, adapter) for adapter in variants_of(module)}
    return found


def _variants_by_name(named: Collection[str]) -> Adapters:
    """Those that names reveal: DoRA has a vector of magnitudes. aLoRA has names like any LoRA."""
    layers = [role_of(name).layer for name in named]
    both = [layer.rsplit(f".{MAGNITUDE}.", 1) for layer in layers if f".{MAGNITUDE}." in layer]
    return {(layer, adapter) for layer, adapter in both}


def variants_named_like_lora(model: nn.Module) -> list[str]:
    """Trained matrices of variants whose names look like LoRA's; an attachment sees only names."""
    named = named_parameters(model)
    hidden = lora_variants(model) - _variants_by_name(named)
    roles = {name: role_of(name) for name, tensor in named.items() if tensor.requires_grad}
    return [n for n, r in roles.items() if r.part in PAIR and (r.layer, r.adapter) in hidden]


def scalings(model: nn.Module) -> dict[tuple[str, str], float]:
    """The factor before ``BA`` of every LoRA, by layer and adapter."""
    found: dict[tuple[str, str], float] = {}
    for name, module in model.named_modules():
        known: Any = getattr(module, "scaling", None)
        if isinstance(known, Mapping) and hasattr(module, "lora_A"):
            layer = role_of(f"{name}.weight").layer
            found |= {(layer, adapter): float(scale) for adapter, scale in known.items()}
    return found


def pairs_in_use(model: nn.Module) -> Adapters:
    """Every LoRA that adds ``BA`` to its layer's weight now: neither switched off nor a variant."""
    found: Adapters = set()
    for name, module in model.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        held: Any = module
        used = {*getattr(held, "active_adapters", held.lora_A)}
        used |= {*getattr(held, "merged_adapters", ())}
        layer = role_of(f"{name}.weight").layer
        found |= {(layer, adapter) for adapter in used & {*held.lora_A}}
    return found - lora_variants(model)


def _one(measure: float, beside: Side) -> Side:
    """The input of a bias, which is always 1, beside inputs with this mean."""
    return Diagonal(beside.like.new_ones(1), measure)


def _values(side: Side) -> Tensor:
    return side.tensors()["diagonal"]


def check_shape(name: str, tensor: Tensor, part: str, layer: LayerMemory) -> None:
    """A parameter must have the shape that it has in the layer that was remembered."""
    shape, wanted = tuple(tensor.shape), tuple(layer.shape)
    if part in PAIR:
        shape = (len(tensor), tensor.shape[1:].numel())
        wanted = (shape[0], layer.inputs.dim) if part == "lora_A" else (layer.outputs.dim, shape[1])
    elif "bias" in part:
        wanted = (layer.outputs.dim,)
    if shape != wanted:
        raise ValueError(
            f"the memory is of another model: parameter {name!r} must have shape {wanted}, "
            f"got {shape}"
        )
