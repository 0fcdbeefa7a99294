"""Models of the sizes that people adapt, with random weights, and one training step of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

BATCH = 8


@dataclass(frozen=True)
class Subject:
    name: str
    model: nn.Module
    loss: Callable[[], Tensor]
    batch: Any
    """The examples of that loss."""


class ParallelAdapter(nn.Module):
    """An MLP with a bottleneck beside it, as adapters for vision transformers have it."""

    def __init__(self, mlp: nn.Module, width: int, bottleneck: int = 64) -> None:
        super().__init__()
        self.mlp = mlp
        self.down = nn.Linear(width, bottleneck)
        self.up = nn.Linear(bottleneck, width)

    def forward(self, x: Tensor) -> Tensor:
        narrow: Tensor = self.up(self.down(x).relu())
        wide: Tensor = self.mlp(x)
        return wide + 0.1 * narrow


def vit(full: bool) -> Subject:
    model: Any = timm.create_model("vit_base_patch16_224", pretrained=False, num_classes=100)
    if not full:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        for block in model.blocks:
            block.mlp = ParallelAdapter(block.mlp, model.embed_dim)
    images, labels = torch.randn(BATCH, 3, 224, 224), torch.randint(100, (BATCH,))
    kind = "full fine-tuning" if full else "adapters"
    return Subject(
        f"ViT-B/16, {kind}", model, lambda: cross_entropy(model(images), labels), (images, labels)
    )


def t5(full: bool, source: int = 512, target: int = 50) -> Subject:
    config = T5Config(
        vocab_size=32128, d_model=512, d_ff=1024, d_kv=64, num_layers=8, num_heads=6,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    config.decoder_start_token_id = 0
    model: nn.Module = T5ForConditionalGeneration(config)
    if not full:
        lora = LoraConfig(r=8, lora_alpha=32, lora_dropout=0.1, target_modules=["q", "v"])
        model = get_peft_model(model, lora)
    # The default lengths are the O-LoRA benchmark's limits; its texts are often shorter.
    tokens = torch.randint(1, 32128, (BATCH, source))
    labels = torch.randint(1, 32128, (BATCH, target))
    kind = "full fine-tuning" if full else "LoRA r=8"
    return Subject(
        f"T5 of flan-T5-small's size, {kind}, {source}+{target} tokens",
        model,
        lambda: model(input_ids=tokens, labels=labels).loss,
        {"input_ids": tokens, "labels": labels},
    )


def chat(tokens: int = 128) -> Subject:
    """A LoRA on all linear layers of a model that writes."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
    base: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model: nn.Module = get_peft_model(base, lora)
    batch = torch.randint(1, 49152, (BATCH, tokens))
    return Subject(
        f"SmolLM2-135M's size, LoRA r=8, {BATCH} x {tokens} tokens",
        model,
        lambda: model(input_ids=batch, labels=batch).loss,
        {"input_ids": batch, "labels": batch},
    )
