"""LoRA over a quantized base: a memory needs inputs and gradients, not float weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import risegrad
from integrations.test_transformers import STEPS, OldExamples, tiny, trainer

peft = pytest.importorskip("peft")
from risegrad.integrations.keep import KeepCallback  # noqa: E402


def lora(base: Any) -> Any:
    torch.manual_seed(0)
    wanted = {name.rpartition(".")[2] for name, m in base.named_modules() if type(m) is nn.Linear}
    chosen = sorted(wanted - {"lm_head", "score"})
    return peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=chosen))


def test_int8_weights_of_torchao_are_remembered(tmp_path: Path) -> None:
    ao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    plain, base = tiny(), tiny()
    heads = ("lm_head",)  # tied or small: left as it is
    ao.quantize_(
        base,
        ao.Int8WeightOnlyConfig(),
        lambda m, name: isinstance(m, nn.Linear) and not name.endswith(heads),
    )
    callbacks = {}
    for name, model in {"plain": lora(plain), "int8": lora(base)}.items():
        callback = KeepCallback(OldExamples(), examples=16)
        trainer(model, tmp_path / name, callbacks=[callback]).train()
        assert callback.keeper is not None
        assert callback.keeper.steps == STEPS
        callbacks[name] = callback.keeper
    one, other = callbacks["plain"].memory, callbacks["int8"].memory
    assert list(one) == list(other)
    for layer in one:  # rounding to 8 bits changes the moments a little
        assert other[layer].inputs.mean == pytest.approx(one[layer].inputs.mean, rel=0.1)
        assert other[layer].outputs.mean == pytest.approx(one[layer].outputs.mean, rel=0.2)


class Lost(torch.autograd.Function):
    """As bitsandbytes' 4-bit product on a CPU in eval mode: it has no backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(gradients[0])


class LosesGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Lost.apply(self.layer(x))
        return found


def test_a_memory_of_lost_gradients_is_refused() -> None:
    batches = [(torch.randn(8, 4), torch.zeros(8).long())]
    with pytest.raises(ValueError, match="every gradient that came back to the layers is zero"):
        risegrad.remember(LosesGradients(), batches, examples=8)
    risegrad.remember(copy.deepcopy(LosesGradients().layer), batches, examples=8)
