"""Whether a memory is one of this model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from risegrad.blocks import listing
from risegrad.curvature.memory.layer_memory import LayerMemory
from risegrad.curvature.memory.layers import all_layers


def check_fits(memory: Mapping[str, LayerMemory], model: nn.Module) -> None:
    """Every remembered layer is in the model with its kind and shape; an error names the others."""
    layers = all_layers(model)
    wrong = []
    for name, kept in memory.items():
        layer = layers.get(name)
        if layer is None:
            wrong.append(f"{name} (missing)")
        elif (layer.kind, layer.shape) != (kept.kind, tuple(kept.shape)):
            wrong.append(
                f"{name} ({layer.kind} {layer.shape} in the model, {kept.kind} "
                f"{tuple(kept.shape)} in the memory)"
            )
    if wrong:
        raise ValueError(
            f"the memory is not one of this model: {listing(wrong)}; the model has "
            f"{listing([*layers])}"
        )
