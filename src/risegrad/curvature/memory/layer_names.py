"""One name for a layer, whether it is alone, has an adapter or was merged.

A memory belongs to a layer's map, not to the tensors that make it up at the moment. So what peft
adds to names is taken off: a memory of the plain model serves the one with LoRA, and the other way.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from risegrad.core.parameter_names import WRAPPERS, plain_name

PAIR = ("lora_A", "lora_B")
"""How peft calls the two matrices of a LoRA."""


class Role(NamedTuple):
    """What a parameter is to its layer: ``weight``, ``bias``, ``lora_A`` or ``lora_B``."""

    layer: str
    part: str
    adapter: str = ""


def layer_name(name: str) -> str:
    """The name of a module without what wrappers and peft added.

    >>> layer_name("base_model.model.encoder.q.base_layer")
    'encoder.q'
    >>> layer_name("base_model.model.score.modules_to_save.default")
    'score'
    """
    # Not ``plain_name``, which leaves "module" as it is: of "module.weight" only "weight" is left.
    parts = [part for part in name.split(".") if part and part not in WRAPPERS]
    if parts[:2] == ["base_model", "model"]:
        parts = parts[2:]
    if "modules_to_save" in parts:
        at = parts.index("modules_to_save")
        parts = parts[:at] + parts[at + 2 :]
    return ".".join(part for part in parts if part != "base_layer")


def role_of(name: str) -> Role:
    """The layer that a parameter belongs to and what it does there.

    >>> role_of("base_model.model.encoder.q.lora_A.default.weight")
    Role(layer='encoder.q', part='lora_A', adapter='default')
    >>> role_of("encoder.q.bias")
    Role(layer='encoder.q', part='bias', adapter='')
    """
    parts = name.split(".")
    for pair in PAIR:
        if pair in parts:
            at = parts.index(pair)
            part = pair if parts[-1] == "weight" else f"{pair}.{parts[-1]}"
            return Role(layer_name(".".join(parts[:at])), part, ".".join(parts[at + 1 : -1]))
    return Role(layer_name(".".join(parts[:-1])), parts[-1])


def named_parameters(model: nn.Module) -> dict[str, Tensor]:
    """All parameters by the names that an attachment has for them."""
    named = dict(model.named_parameters())
    plain: dict[str, Tensor] = {plain_name(name): p for name, p in named.items()}
    return plain if len(plain) == len(named) else {**named}
