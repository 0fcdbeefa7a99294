"""What trains of a chat model: LoRA, peft's OSF and CorDA, OPLoRA, LoRA-Null, or all weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from risegrad.common.imports import need
from risegrad.common.seeds import seed_for
from riselab.continual.chat.cache import Made, cached, content_of
from riselab.continual.chat.settings import ChatModelSettings
from riselab.continual.chat.texts import Batch


def trained_parts(
    model: Any, settings: ChatModelSettings, seed: int, old: Sequence[Batch] = ()
) -> Any:
    """The model with what trains; ``old`` (one chat each) is what CorDA and LoRA-Null look at."""
    if settings.trains == "all":
        return model.requires_grad_(True)
    peft = need("peft", "language", "LoRA")
    where = {"target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    if settings.trains == "osf":
        return peft.get_peft_model(model, peft.OSFConfig(**where))
    config = peft.LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, lora_dropout=settings.dropout, **where
    )
    # Before the wrapping, so that both see the weights under their own names.
    decomposed = _decomposed(model, settings, old)
    torch.manual_seed(seed_for(seed, "lora"))
    if settings.trains == "corda":
        _look_for_corda(model, config, old)
    model = peft.get_peft_model(model, config)
    for name, layer in lora_layers(model):
        of = name.removeprefix("base_model.model.")
        if settings.trains == "oplora":
            _project_both_sides(layer, decomposed[f"{of}/left"], decomposed[f"{of}/right"])
        if settings.trains == "lora-null":
            _begin_in_null_space(layer, decomposed[f"{of}/null"])
    return model


def _decomposed(model: Any, settings: ChatModelSettings, old: Sequence[Batch]) -> dict[str, Tensor]:
    """What has to be decomposed once for each model, by layer."""
    ways: dict[str, Callable[[], Made]] = {
        "oplora": lambda: (_strongest(model, settings.protect), {}),
        "lora-null": lambda: (_least_used(model, old, settings.rank), {}),
    }
    if settings.trains not in ways:
        return {}
    key: dict[str, Any] = {"decomposed": settings.trains, "model": content_of(model)}
    if settings.trains == "oplora":
        key |= {"protect": settings.protect}
    else:
        key |= {"rank": settings.rank, "old": [batch["input_ids"].tolist() for batch in old]}
    return cached(key, ways[settings.trains])[0]


def _linear(model: Any) -> Iterator[tuple[str, nn.Linear]]:
    """The layers that a LoRA is put on: all linear ones but the output layer."""
    out = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module is not out:
            yield name, module


def lora_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Those with a LoRA, by name."""
    return ((n, m) for n, m in model.named_modules() if hasattr(m, "lora_A") and len(m.lora_A))


def _read(model: Any, old: Sequence[Batch]) -> None:
    """Let hooks see the chats; one at a time, because they count every position, padding too."""
    for batch in old:
        model(input_ids=batch["input_ids"].to(model.device), use_cache=False)


@torch.no_grad()
def _strongest(model: Any, count: int) -> dict[str, Tensor]:
    """The first ``count`` singular vectors of each weight, as columns."""
    found: dict[str, Tensor] = {}
    for name, layer in _linear(model):
        left, _, right = torch.linalg.svd(layer.weight.detach().float(), full_matrices=False)
        kept = min(count, len(right) - 1)  # something has to be left to learn with
        found |= {f"{name}/left": left[:, :kept].clone(), f"{name}/right": right[:kept].T.clone()}
    return found


@torch.no_grad()
def _least_used(model: Any, old: Sequence[Batch], count: int) -> dict[str, Tensor]:
    """The ``count`` directions, as columns, that the inputs of each layer use least."""
    sums: dict[str, Tensor] = {}

    def add(name: str) -> Callable[[Any, Any], None]:
        def hook(_: Any, inputs: Any) -> None:
            rows = inputs[0].detach().flatten(0, -2).double()
            sums[name] = sums.get(name, 0) + rows.T @ rows

        return hook

    handles = [layer.register_forward_pre_hook(add(name)) for name, layer in _linear(model)]
    try:
        _read(model, old)
    finally:
        for handle in handles:
            handle.remove()
    return {f"{n}/null": torch.linalg.eigh(s)[1][:, :count].float() for n, s in sums.items()}


class Without(nn.Module):
    """A matrix without its part in the span of ``basis``, on the left or on the right."""

    basis: Tensor

    def __init__(self, basis: Tensor, left: bool) -> None:
        super().__init__()
        self.left = left
        self.register_buffer("basis", basis, persistent=False)

    def forward(self, matrix: Tensor) -> Tensor:
        """``(1 - U U') M`` or ``M (1 - V V')``."""
        basis = self.basis.to(matrix)
        if self.left:
            return matrix - basis @ (basis.T @ matrix)
        return matrix - (matrix @ basis) @ basis.T


def _project_both_sides(layer: Any, left: Tensor, right: Tensor) -> None:
    """OPLoRA: ``(1 - U U') B A (1 - V V')``, so that strong singular triples stay as they are."""
    for name in layer.lora_A:
        device = layer.lora_A[name].weight.device
        outer, inner = Without(left.to(device), True), Without(right.to(device), False)
        register_parametrization(layer.lora_B[name], "weight", outer)
        register_parametrization(layer.lora_A[name], "weight", inner)


@torch.no_grad()
def _begin_in_null_space(layer: Any, null: Tensor) -> None:
    """LoRA-Null: ``BA`` begins as the weight's part in the null space, which leaves the weight."""
    weight = layer.get_base_layer().weight
    null = null.to(weight)
    left, values, right = torch.linalg.svd((weight @ null) @ null.T, full_matrices=False)
    for name in layer.lora_A:
        rank, scale = layer.r[name], layer.scaling[name]
        root = (values[:rank] / scale).sqrt()
        layer.lora_B[name].weight.copy_(left[:, :rank] * root)
        layer.lora_A[name].weight.copy_(root.unsqueeze(1) * right[:rank])
        weight -= scale * layer.lora_B[name].weight @ layer.lora_A[name].weight


def _look_for_corda(model: Any, config: Any, old: Sequence[Batch]) -> None:
    from peft.tuners.lora.config import CordaConfig
    from peft.tuners.lora.corda import preprocess_corda

    config.init_lora_weights, config.corda_config = "corda", CordaConfig(corda_method="kpm")
    # It sees names only, and the output layer is none of peft's linear ones.
    config.target_modules = {name for name, _ in _linear(model)}
    preprocess_corda(model, config, run_model=lambda: _read(model, old))
