"""LoRA layers through peft, with room for the frozen adapters of earlier tasks.

Earlier adapters are stacked: rows of all A, columns of all B. They see the same dropped-out input
as the new one and have the same scale, so one product serves all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, OSFConfig, inject_adapter_in_model
from peft.tuners.lora import Linear as PeftLinear
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL_TARGETS
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoConfig, AutoModel
from transformers.pytorch_utils import Conv1D

ADAPTER = "default"
Q_AND_V = (("q", "v"), ("q_proj", "v_proj"), ("query", "value"))


class StackedLora(PeftLinear):
    """``W x + scale (B A + B_past A_past) dropout(x)``; ``folded`` once W holds all of it."""

    past_A: Tensor | None = None
    past_B: Tensor | None = None
    folded = False

    @property
    def down(self) -> nn.Linear:
        """The map to the low rank that is being trained."""
        return cast(nn.Linear, self.lora_A[ADAPTER])

    @property
    def up(self) -> nn.Linear:
        """The map back from the low rank that is being trained."""
        return cast(nn.Linear, self.lora_B[ADAPTER])

    @property
    def A(self) -> nn.Parameter:
        """The weight of ``down``."""
        return cast(nn.Parameter, self.down.weight)

    @property
    def B(self) -> nn.Parameter:
        """The weight of ``up``."""
        return cast(nn.Parameter, self.up.weight)

    @property
    def base(self) -> nn.Linear:
        """The frozen layer."""
        return cast(nn.Linear, self.base_layer)

    @property
    def scale(self) -> float:
        """LoRA's factor: the adapter adds ``scale * B A x``."""
        return float(self.scaling[ADAPTER])

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The layer's output with the trained adapter and all earlier ones."""
        base: Tensor = self.base(x, *args, **kwargs)
        if self.folded:
            return base
        x = self.lora_dropout[ADAPTER](x)
        if self.past_A is None or self.past_B is None:
            low: Tensor = self.up(self.down(x))
        else:
            low = linear(x, torch.cat([self.past_A, self.A]))
            low = linear(low, torch.cat([self.past_B, self.B], dim=1))
        return base + low * self.scale

    @torch.no_grad()
    def start(self, generator: torch.Generator) -> None:
        """A new pair: A Kaiming-uniform with a = sqrt(5), which is 1/sqrt(inputs); B zero."""
        bound = 1 / math.sqrt(self.A.shape[1])
        drawn = torch.empty(self.A.shape).uniform_(-bound, bound, generator=generator)
        self.A.copy_(drawn)
        self.B.zero_()

    @torch.no_grad()
    def freeze(self) -> None:
        """Put the pair to the earlier ones; what is left of it does nothing."""
        stack_a, stack_b = self.past_A, self.past_B
        a, b = self.A.detach().clone(), self.B.detach().clone()
        self.past_A = a if stack_a is None else torch.cat([stack_a, a])
        self.past_B = b if stack_b is None else torch.cat([stack_b, b], dim=1)
        self.B.zero_()

    def delta(self) -> Tensor:
        """What all pairs together add to the weight."""
        found = self.B @ self.A
        if self.past_A is not None and self.past_B is not None:
            found = found + self.past_B @ self.past_A
        found = found * self.scale
        return found.T if self.fan_in_fan_out else found


def add_lora(
    model: nn.Module, model_type: str, targets: tuple[str, ...], rank: int, alpha: float, p: float
) -> dict[str, StackedLora]:
    """Put LoRA on the layers with these names; the layers by their full names, all else frozen."""
    found = _targets(model, model_type, targets)
    _check_tied(model, found)
    conv = any(isinstance(m, Conv1D) for n, m in model.named_modules() if _last(n) in found)
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type, unused-ignore]
        lora_dropout=p,
        target_modules=list(found),
        fan_in_fan_out=conv,
    )
    config._register_custom_module({nn.Linear: StackedLora, Conv1D: StackedLora})
    inject_adapter_in_model(config, model, ADAPTER)
    model.requires_grad_(False)
    return {n: m for n, m in model.named_modules() if isinstance(m, StackedLora)}


def add_osf(model: nn.Module, model_type: str, targets: tuple[str, ...]) -> tuple[str, ...]:
    """Put peft's OSF on the layers with these names; the names of what trains.

    Its hooks keep gradients across the larger half of each weight's singular directions.
    """
    found = _targets(model, model_type, targets)
    _check_tied(model, found)
    inject_adapter_in_model(OSFConfig(target_modules=list(found)), model, ADAPTER)
    names = tuple(name for name, _ in model.named_parameters() if ".osf_svd_params." in name)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    return names


def usual_targets(place: str) -> tuple[str, ...]:
    """The layers that get LoRA where none are asked for, by the model's configuration alone."""
    config = AutoConfig.from_pretrained(place)
    with torch.device("meta"):
        shape: nn.Module = AutoModel.from_config(config)  # type: ignore[no-untyped-call, unused-ignore]
    return _targets(shape, str(config.model_type), ())


@contextmanager
def folded(layers: Mapping[str, StackedLora]) -> Iterator[None]:
    """All adapters inside the weights for a while: no layer costs more than without LoRA.

    Afterwards the very same weights are back, without the rounding of subtracting again.
    """
    kept = [(layer, layer.base.weight.data) for layer in layers.values()]
    try:
        with torch.no_grad():
            for layer, weight in kept:
                layer.base.weight.data = weight + layer.delta().to(weight.dtype)
                layer.folded = True
        yield
    finally:
        for layer, weight in kept:
            layer.base.weight.data = weight
            layer.folded = False


def _targets(model: nn.Module, model_type: str, targets: tuple[str, ...]) -> tuple[str, ...]:
    """The names asked for, or those usual for this kind of model, or the usual names of q and v."""
    there = sorted(
        {_last(n) for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D)} - {""}
    )
    usual = USUAL_TARGETS.get(model_type, ())
    options = [targets] if targets else [tuple(usual) if isinstance(usual, list) else (), *Q_AND_V]
    for names in options:
        if names and all(name in there for name in names):
            return names
    wanted = f"model.targets {', '.join(targets)}" if targets else "the usual LoRA targets"
    raise ValueError(
        f"{wanted} must be linear layers of the model ({model_type}); it has "
        f"{', '.join(there) or 'none'}"
    )


def _check_tied(model: nn.Module, names: tuple[str, ...]) -> None:
    """A weight that is also an embedding's would change there too once LoRA is folded into it."""
    tables = {
        id(module.weight): name
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    }
    for name, module in model.named_modules():
        table = tables.get(id(getattr(module, "weight", None)))
        if table and _last(name) in names and not isinstance(module, nn.Embedding):
            raise ValueError(
                f"model.targets must have weights of their own, got {name}, which shares its "
                f"weight with {table}"
            )


def _last(name: str) -> str:
    return name.rpartition(".")[2]


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
