"""Trained LoRA layers in a folder that ``PeftModel.from_pretrained`` loads."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, TaskType
from safetensors.torch import save_file
from torch import Tensor

from risegrad.continual.language.language_models import LanguageModel
from risegrad.continual.language.lora_layers import StackedLora

TASKS = {
    "seq2seq": TaskType.SEQ_2_SEQ_LM,
    "decoder": TaskType.CAUSAL_LM,
    "encoder": TaskType.FEATURE_EXTRACTION,
}


def save_adapter(model: LanguageModel, folder: Path) -> None:
    """All pairs of a layer as one of their summed rank, which adds the same to its weight."""
    pairs = {name: _stacked(layer) for name, layer in model.layers.items()}
    first = next(iter(model.layers.values()))
    rank = len(next(iter(pairs.values()))[0])
    config = LoraConfig(
        task_type=TASKS[model.kind],
        base_model_name_or_path=model.settings.weights or model.settings.name,
        r=rank,
        lora_alpha=first.scale * rank,  # type: ignore[arg-type, unused-ignore]
        lora_dropout=model.settings.dropout,
        target_modules=list(model.layers),
        fan_in_fan_out=first.fan_in_fan_out,
        inference_mode=True,
    )
    config.save_pretrained(str(folder))
    state: dict[str, Tensor] = {}
    for name, (a, b) in pairs.items():
        state[f"base_model.model.{name}.lora_A.weight"] = a
        state[f"base_model.model.{name}.lora_B.weight"] = b
    save_file(state, folder / "adapter_model.safetensors")


def _stacked(layer: StackedLora) -> tuple[Tensor, Tensor]:
    """The earlier pairs and the last one; one that does nothing (B is zero) is left out."""
    a, b = layer.A.detach(), layer.B.detach()
    if layer.past_A is not None and layer.past_B is not None:
        new = bool(b.count_nonzero())
        a = torch.cat([layer.past_A, a]) if new else layer.past_A
        b = torch.cat([layer.past_B, b], dim=1) if new else layer.past_B
    return a.cpu().clone().contiguous(), b.cpu().clone().contiguous()
