"""All weights of a network trained, instead of LoRA layers on a frozen one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import nn


def free(net: nn.Module) -> tuple[str, ...]:
    """Names of the weights that train: all but those that the architecture itself holds fixed.

    An encoder's pooler is held, too: texts are means of the last states, so nothing here reads it,
    and estimated gradients and noise would only wear it down.
    """
    pooler = getattr(net, "pooler", None)
    if isinstance(pooler, nn.Module):
        pooler.requires_grad_(False)
    return tuple(name for name, weight in net.named_parameters() if weight.requires_grad)


def own_linears(net: nn.Module, trained: Collection[str]) -> dict[str, nn.Linear]:
    """The trained linear layers by the name of their weight, if it is theirs alone.

    The inputs of an output layer say nothing about the embedding that shares its weight.
    """
    homes = Counter(id(weight) for _, weight in net.named_parameters(remove_duplicate=False))
    found = {f"{name}.weight": m for name, m in net.named_modules() if isinstance(m, nn.Linear)}
    return {n: m for n, m in found.items() if n in trained and homes[id(m.weight)] == 1}


def save_network(net: Any, tokenizer: Any, folder: Path) -> None:
    """In the form of transformers, as ``from_pretrained`` and ``model.weights`` take it."""
    net.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
