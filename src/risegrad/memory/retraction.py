"""How much of a finished fine-tuning to keep, so that what was known suffers less.

Along the change ``dW`` of a layer, keeping the share ``a`` of it costs ``a^2 h`` of the old, with
``h = tr(D dW S dW')/2``, and ``(1 - a)^2 c`` of the new, whose loss is taken to have its minimum at
the end of the training. The best share is ``c / (c + strength h)``. One share for the whole model,
from the sums of ``c`` and ``h``, is the interpolation of weights that people know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_choice, check_number
from risegrad.core.blocks import listing
from risegrad.core.coverage import plain_name
from risegrad.memory.factor import Diagonal
from risegrad.memory.layers import Role, layer_name, named_parameters, role_of
from risegrad.memory.memory import Memory
from risegrad.memory.penalty import Anchor, Moved, layer_damages, moved_parameters
from risegrad.memory.ranks import check_unsharded
from risegrad.memory.sides import pairs_in_use


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
        raise ValueError(f"the memory of the new task does not know layer {missing[0]!r}")
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
