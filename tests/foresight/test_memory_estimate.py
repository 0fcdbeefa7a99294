"""What a memory takes, from shapes alone: against memories that were made and saved."""

import json
import re

import pytest
import timm
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import T5Config, T5ForConditionalGeneration

from risegrad import Memory, remember
from riselab.commands import calibrate
from riselab.foresight.calibration import (
    LayerShape,
    Lora,
    full_estimate,
    lora_estimate,
    memory_estimates,
    memory_layers,
)
from tests.foresight.test_commands import run


def saved_bytes(model, batch, rank, path):
    """Bytes of all factors that a saved memory of the model holds, layer by layer."""
    remember(model, [batch], examples=2, rank=rank).save(path)
    return {name: layer.bytes for name, layer in Memory.load(path).items()}


@pytest.fixture
def tiny_t5(tmp_path):
    torch.manual_seed(0)
    config = T5Config(vocab_size=40, d_model=24, d_ff=20, d_kv=6, num_layers=1, num_heads=2,
                      decoder_start_token_id=0)  # fmt: skip
    model = T5ForConditionalGeneration(config)
    model.save_pretrained(tmp_path / "t5")
    return model


TOKENS = {"input_ids": torch.arange(1, 11).view(2, 5), "labels": torch.arange(2, 8).view(2, 3)}


@pytest.mark.parametrize("rank", [8, 16, 64])
def test_predicted_bytes_are_those_of_a_saved_memory(tiny_t5, tmp_path, rank):
    """Ranks below and above the widths; tied embeddings are in neither."""
    saved = saved_bytes(tiny_t5, TOKENS, rank, tmp_path / "m.safetensors")
    layers = memory_layers(str(tmp_path / "t5"))
    assert {layer.name: layer.bytes(rank) for layer in layers} == saved
    total = memory_estimates(str(tmp_path / "t5"), None, 64)[0].total
    assert total.bytes[(8, 16, 64).index(rank)] == sum(saved.values())


def test_predicted_bytes_of_lora(tiny_t5, tmp_path):
    adapted = get_peft_model(tiny_t5, LoraConfig(r=2, target_modules=["q", "v"]))
    saved = saved_bytes(adapted, TOKENS, 8, tmp_path / "m.safetensors")
    found = memory_estimates(str(tmp_path / "t5"), Lora(2, ("q", "v")), 64)[1]
    assert found.total.layers == len(saved) == 6
    assert found.total.bytes[0] == sum(saved.values())


def test_predicted_bytes_of_convolutions_and_norms(tmp_path):
    name = "vit_tiny_patch16_224"
    model = timm.create_model(name, pretrained=False)
    saved = saved_bytes(model, (torch.randn(2, 3, 224, 224), torch.tensor([0, 1])), 8,
                        tmp_path / "m.safetensors")  # fmt: skip
    assert {layer.name: layer.bytes(8) for layer in memory_layers(name)} == saved
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    assert {x.name: x.bytes(8) for x in memory_layers(str(tmp_path / "w.safetensors"))} == saved


def test_time_is_what_the_products_take():
    """Counted by hand for one layer: 3 mnT of its own, 4 kmn for the filter."""
    layer = LayerShape("a.0.b", "linear", (30, 20))
    found = full_estimate([layer], tokens=7, ranks=(2, 25))
    own = 3 * 20 * 30 * 7
    # Rank 25 is below 30 but above 20, where a factor is kept in full.
    assert found.total.time == (4 * 2 * 600 / own, 600 * (20 + 50) / own)
    lora = lora_estimate([layer], 3, ["b"], tokens=7, ranks=(2,))
    a, b = 3 * 20, 30 * 3
    filtered = (a * 4 + a * 3) + (b * 4 + b * 3)
    made = (a * 4 + a * 3) + (b * 4 + b * 3)  # A S A' and B'DB
    assert lora.total.time == ((filtered + made) / (2 * 600 * 7),)
    assert [group.name for group in found.groups] == ["a.*.b"]


def test_calibrate_prints_memories(capsys, tmp_path):
    out = tmp_path / "table.json"
    words = ["--model", "vit_tiny_patch16_224", "--blocks", "whole", "--tokens", "1576"]
    run(calibrate, *words, "--json", out)
    text = capsys.readouterr().out
    assert "memory of full fine-tuning" in text
    assert "memory of LoRA r=8 on qkv" in text
    line = next(line for line in text.splitlines() if line.startswith("blocks.*.attn.qkv"))
    assert line.split()[1] == "12"
    full, lora = json.loads(out.read_text())["memory"]
    assert full["ranks"] == [8, 16, 64]
    assert full["tokens"] == 1576
    qkv = next(group for group in full["groups"] if group["name"] == "blocks.*.attn.qkv")
    assert qkv["bytes"] == lora["total"]["bytes"]
    assert qkv["time"][1] == pytest.approx(4 * 16 / (3 * 1576))


def test_a_model_without_known_targets_has_no_lora_table(tmp_path):
    save_file({"fc.weight": torch.zeros(3, 4)}, tmp_path / "w.safetensors")
    path = str(tmp_path / "w.safetensors")
    assert [found.way for found in memory_estimates(path, None, 8)] == ["full fine-tuning"]
    with pytest.raises(ValueError, match="targets: no layer is called qkv"):
        memory_estimates(path, Lora(2), 8)
    with pytest.raises(ValueError, match=re.escape("tokens must be an integer >= 1, got 0")):
        memory_estimates(path, None, 0)
