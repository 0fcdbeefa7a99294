"""Where a penalty pulls to: the trained parameters of the remembered layers at one moment.

It holds what is trained and nothing else, because the rest cannot move: the pairs of a LoRA
(``r (in + out)`` numbers a layer), or whole weights in full fine-tuning. A memory does not hold it,
or a memory of a few megabytes would be as large as the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from risegrad.core.blocks import listing
from risegrad.core.shards import exact_products
from risegrad.memory.layers import PAIR, LayerMemory, Role, named_parameters, role_of
from risegrad.memory.sides import check_shape, pairs_in_use, scalings
from risegrad.memory.watch import at_least_float32


@dataclass(frozen=True)
class Anchor:
    """Values by parameter name."""

    values: Mapping[str, Tensor]

    @property
    def bytes(self) -> int:
        """The memory that the values take."""
        return sum(value.numel() * value.element_size() for value in self.values.values())


def anchor_of(memory: Mapping[str, LayerMemory], model: nn.Module) -> Anchor:
    """The trained parameters of the remembered layers as they are now."""
    values = {
        name: tensor.detach().clone()
        for name, tensor in named_parameters(model).items()
        if tensor.requires_grad and role_of(name).layer in memory
    }
    if not values:
        raise ValueError("the memory covers no trained parameter of the model: nothing to anchor")
    return Anchor(values)


@dataclass(frozen=True)
class Moved:
    """A parameter now and at the anchor; None if the anchor does not know it."""

    name: str
    now: Tensor
    then: Tensor | None


def moved_parameters(
    memory: Collection[str], model: nn.Module, anchor: Anchor
) -> dict[str, dict[Role, Moved]]:
    """By layer and role: what may have moved, and the partners of LoRA matrices that may."""
    _check_switched_on(memory, model)
    found: dict[str, dict[Role, Moved]] = {}
    pairs = _moved_pairs(model, anchor)
    for name, tensor in named_parameters(model).items():
        role, then = role_of(name), anchor.values.get(name)
        if role.part in PAIR:
            moves = (role.layer, role.adapter) in pairs
        else:
            moves = tensor.requires_grad or then is not None
        if role.layer not in memory or not moves:
            continue
        if then is not None and then.shape != tensor.shape:
            raise ValueError(
                f"the anchor is of another model: {name} has shape {tuple(tensor.shape)}, "
                f"the anchor {tuple(then.shape)}"
            )
        found.setdefault(role.layer, {})[role] = Moved(name, tensor, then)
    if not found:
        raise ValueError("the memory covers no trained parameter of the model")
    return found


def _check_switched_on(memory: Collection[str], model: nn.Module) -> None:
    """Inside ``disable_adapter()`` the model does not compute what was trained."""
    off = [
        layer
        for name, module in model.named_modules()
        if getattr(module, "disable_adapters", False) is True
        and (layer := role_of(f"{name}.weight").layer) in memory
    ]
    if off:
        raise ValueError(
            f"the adapters of layer {listing(off)} are switched off (disable_adapter), so the "
            "model does not use its trained parameters: call this while they are on"
        )


def _moved_pairs(model: nn.Module, anchor: Anchor) -> set[tuple[str, str]]:
    """Layers and adapters of the LoRAs that may have moved their layer.

    A frozen one has not moved since an anchor; without an anchor all that are in use are measured
    from zero.
    """
    trained = {
        (role.layer, role.adapter)
        for name, tensor in named_parameters(model).items()
        if (role := role_of(name)).part in PAIR and (tensor.requires_grad or name in anchor.values)
    }
    adding = pairs_in_use(model)
    return adding & trained if anchor.values else adding


def change_of(moved: Moved) -> Tensor:
    """How far a parameter has moved from its anchor, in float32 at least."""
    if moved.then is None:
        raise ValueError(
            f"the anchor does not hold {moved.name}, which is trained: make it by "
            "memory.anchor(model) before the training"
        )
    now = at_least_float32(moved.now)
    return now - moved.then.to(now)


def pair_change(
    parts: Mapping[Role, Moved], down: Role, scale: float
) -> tuple[Tensor, Tensor] | None:
    """``up`` and ``down`` with ``dW = up @ down`` of one LoRA; without an anchor, from zero.

    ``BA - B0 A0`` as ``(B - B0) A + B0 (A - A0)``: a small move is then a small factor, and not
    what is left of two large products.
    """
    up = parts.get(Role(down.layer, "lora_B", down.adapter))
    if up is None:
        return None
    a, b = (at_least_float32(m.now).flatten(1) for m in (parts[down], up))
    then_a, then_b = parts[down].then, up.then
    if then_a is None and then_b is None:
        return b * scale, a
    a0 = a.detach() if then_a is None else then_a.to(a).flatten(1)
    b0 = b.detach() if then_b is None else then_b.to(b).flatten(1)
    return torch.cat([b - b0, b0], dim=1) * scale, torch.cat([a, a - a0])


def layer_damages(
    memory: Mapping[str, LayerMemory], model: nn.Module, anchor: Anchor
) -> dict[str, Tensor]:
    """``tr(D dW S dW')/2`` of each layer since the anchor, and of its bias."""
    scale = scalings(model)
    found = {}
    for name, parts in moved_parameters(memory, model, anchor).items():
        for role, moved in parts.items():
            check_shape(moved.name, moved.now, role.part, memory[name])
        # A loss is often made inside autocast, where products keep three digits.
        with exact_products(memory[name].outputs.like, *(moved.now for moved in parts.values())):
            found[name] = _moved_damage(memory[name], name, parts, scale)
    return found


def _moved_damage(
    layer: LayerMemory,
    name: str,
    parts: Mapping[Role, Moved],
    scale: Mapping[tuple[str, str], float],
) -> Tensor:
    pairs = [
        pair
        for role in parts
        if role.part == "lora_A"
        and (pair := pair_change(parts, role, scale.get((name, role.adapter), 1.0)))
    ]
    biases = [
        change_of(moved) * scale.get((name, role.adapter), 1.0)
        for role, moved in parts.items()
        if role.part in ("bias", "lora_B.bias")
    ]
    return _layer_damage(layer, parts.get(Role(name, "weight")), pairs, biases)


def _layer_damage(
    layer: LayerMemory,
    weight: Moved | None,
    pairs: list[tuple[Tensor, Tensor]],
    biases: list[Tensor],
) -> Tensor:
    total = layer.outputs.like.new_zeros(())
    if weight is not None:
        change = change_of(weight)
        for up, down in pairs:
            dense = up @ down
            change = change + (dense.T if layer.kind == "conv1d" else dense).reshape(change.shape)
        total = total + layer.damage(change)
    elif pairs:
        ups, downs = zip(*pairs, strict=True)
        total = total + layer.pair_damage(torch.cat(ups, dim=1), torch.cat(downs))
    return total + layer.bias_damage(torch.stack(biases).sum(0)) if biases else total
