"""Where a penalty pulls to: the trained parameters of the remembered layers at one moment.

It holds what is trained and nothing else, because the rest cannot move: the pairs of a LoRA
(``r (in + out)`` numbers a layer), or whole weights in full fine-tuning. A memory does not hold it,
or a memory of a few megabytes would be as large as the model.

And the way back: how much of a finished fine-tuning to keep, so that the old suffers less.

Along the change ``dW`` of a layer, keeping the share ``a`` of it costs ``a^2 h`` of the old, with
``h = tr(D dW S dW')/2``, and ``(1 - a)^2 c`` of the new, whose loss is taken to have its minimum at
the end of the training. The best share is ``c / (c + strength h)``. One share for the whole model,
from the sums of ``c`` and ``h``, is the interpolation of weights that people know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_choice, check_number
from risegrad.core.blocks import listing
from risegrad.core.coverage import plain_name
from risegrad.core.shards import exact_products
from risegrad.memory.factor import Diagonal
from risegrad.memory.layers import PAIR, LayerMemory, Role, layer_name, named_parameters, role_of
from risegrad.memory.ranks import check_unsharded
from risegrad.memory.sides import check_shape, pairs_in_use, scalings
from risegrad.memory.watch import at_least_float32

if TYPE_CHECKING:
    from risegrad.memory.memory import Memory


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
            "model does not use its trained parameters: switch them on first"
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
            f"the anchor lacks {moved.name}, which is trained: create it with "
            "memory.anchor(model) before training"
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
    total, weight = layer.outputs.like.new_zeros(()), parts.get(Role(name, "weight"))
    if weight is not None:
        change = change_of(weight)
        for up, down in pairs:
            dense = up @ down
            change = change + (dense.T if layer.kind == "conv1d" else dense).reshape(change.shape)
        total = total + layer.damage(change)
    elif pairs:
        ups, downs = zip(*pairs, strict=True)
        total = total + layer.pair_damage(torch.cat(ups, dim=1), torch.cat(downs))
    biases = [
        change_of(moved) * scale.get((name, role.adapter), 1.0)
        for role, moved in parts.items()
        if role.part in ("bias", "lora_B.bias")
    ]
    return total + layer.bias_damage(torch.stack(biases).sum(0)) if biases else total


@torch.no_grad()
def retract(
    model: nn.Module,
    before: Anchor | Mapping[str, Tensor],
    memory: Memory,
    *,
    strength: float = 1.0,
    new: Memory | None = None,
    per: str = "layer",
) -> dict[str, float]:
    """Move part of the way back, in place; returns the share of each layer's change that stays.

    ``before``: ``memory.anchor(model)`` or a copy of the model's ``state_dict()`` from before the
    training. Everything that has moved since moves back, even if it is frozen by now. A LoRA that
    is not in the state is newer and moves towards zero; PiSSA and OLoRA do not begin at zero, so
    pass an anchor for them. A head that peft saves whole moves back to the head before it.
    ``new``: a memory of the new task, which weighs each layer's change for that task; without it,
    a change weighs what it would cost the old task if that had no preferred directions. A LoRA
    takes the nearest weight of its rank. Layers that the memory does not cover stay.
    """
    check_choice("per", per, ("layer", "model"))
    check_unsharded(model, "retract")
    weight = check_number("strength", strength, at_least=0)
    anchor = _anchor(model, before)
    _check_apart(model, memory)
    cost = _numbers(layer_damages(memory, model, anchor))
    worth = _numbers(layer_damages(_flat(memory) if new is None else new, model, anchor))
    if missing := [name for name in cost if name not in worth]:
        raise ValueError(f"the memory of the new task has no layer {missing[0]!r}")
    if per == "model":
        cost = dict.fromkeys(cost, sum(cost.values()))
        worth = dict.fromkeys(cost, sum(worth[name] for name in cost))
    shares = {name: _share(worth[name], weight * cost[name]) for name in cost}
    for name, parts in moved_parameters(memory, model, anchor).items():
        _apply(parts, shares[name])
    return shares


@torch.no_grad()
def interpolate(model: nn.Module, before: Anchor | Mapping[str, Tensor], share: float) -> None:
    """Keep one share of every change since ``before``, in place: ``retract`` without a memory."""
    kept = check_number("share", share, at_least=0, at_most=1)
    check_unsharded(model, "interpolate")
    anchor = _anchor(model, before)
    layers = {role_of(name).layer for name in anchor.values}
    _check_apart(model, layers)
    for parts in moved_parameters(layers, model, anchor).values():
        _apply(parts, kept)


def _share(worth: float, cost: float) -> float:
    """All of a change that costs nothing."""
    return worth / (worth + cost) if cost > 0 else 1.0


def _flat(memory: Memory) -> Memory:
    """The same mean curvature, with no direction preferred."""
    return memory.changed(
        lambda _layer, _part, side: Diagonal(torch.full((side.dim,), side.mean).to(side.like))
    )


def _numbers(damages: Mapping[str, Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in damages.items()}


def _check_apart(model: nn.Module, layers: Collection[str]) -> None:
    """Each LoRA stands beside its weight: of one that is merged, changing A and B moves nothing."""
    merged = [
        layer
        for name, module in model.named_modules()
        if getattr(module, "merged_adapters", ()) and (layer := layer_name(name)) in layers
    ]
    if merged:
        raise ValueError(
            f"the LoRA of layer {listing(merged)} is merged into the weight: call "
            "model.unmerge_adapter() first"
        )


def _anchor(model: nn.Module, before: Anchor | Mapping[str, Tensor]) -> Anchor:
    if isinstance(before, Anchor):
        return before
    known = {plain_name(name): value for name, value in before.items()}
    found: dict[str, Tensor] = {}
    pairs, replaced = pairs_in_use(model), _replaced(model, known)
    for name, now in named_parameters(model).items():
        role, then = role_of(name), known.get(name, replaced.get(name))
        if then is not None and (now.requires_grad or _differs(then, now)):
            found[name] = then
        elif then is None and role.part == "lora_B" and (role.layer, role.adapter) in pairs:
            found[name] = torch.zeros_like(now)
        if name in found and found[name].data_ptr() == now.data_ptr():
            raise ValueError(
                f"before holds the model's own {name}, which training has moved too: copy the "
                "state_dict() before the training, value.clone() for each"
            )
    return Anchor(found)


def _replaced(model: nn.Module, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What stood where peft trains a whole layer (``modules_to_save``), by the name of the copy in
    use: as a state of the plain model has it, or as peft keeps it beside the copy."""
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if not (hasattr(module, "modules_to_save") and hasattr(module, "original_module")):
            continue
        wrapper: Any = module
        used = {*getattr(wrapper, "active_adapters", wrapper.modules_to_save)}
        for adapter in used & {*wrapper.modules_to_save}:
            for part, value in wrapper.original_module.named_parameters():
                own = plain_name(f"{name}.modules_to_save.{adapter}.{part}")
                found[own] = known.get(layer_name(f"{name}.{part}"), value)
    return found


def _differs(then: Tensor, now: Tensor) -> bool:
    """An adapter that was loaded to be used is frozen, and has moved nevertheless."""
    return then.shape != now.shape or not torch.equal(then.to(now), now)


def _apply(parts: Mapping[Role, Moved], share: float) -> None:
    for role, moved in parts.items():
        if role.part == "lora_A":
            up = parts.get(Role(role.layer, "lora_B", role.adapter))
            if up is not None:
                _retract_pair(moved, up, share)
        elif role.part != "lora_B" and moved.then is not None:
            moved.now.lerp_(moved.then.to(moved.now), 1 - share)


def _retract_pair(down: Moved, up: Moved, share: float) -> None:
    """``share BA + (1 - share) B0 A0``, or the nearest of the same rank."""
    then_b = up.now if up.then is None else up.then.to(up.now)
    if (up.then is None and down.then is None) or not bool(then_b.any()):
        up.now.mul_(share)
        return
    then_a = down.now if down.then is None else down.then.to(down.now)
    a, b = down.now.flatten(1).double(), up.now.flatten(1).double()
    ups = torch.cat([share * b, (1 - share) * then_b.flatten(1).double()], dim=1)
    downs = torch.cat([a, then_a.flatten(1).double()])
    left, right = torch.linalg.qr(ups), torch.linalg.qr(downs.T)
    u, s, v = torch.linalg.svd(left.R @ right.R.T)
    rank = len(a)
    root = s[:rank].sqrt()
    up.now.copy_((left.Q @ u[:, :rank] * root).reshape(up.now.shape))
    down.now.copy_((root[:, None] * (v[:rank] @ right.Q.T)).reshape(down.now.shape))
