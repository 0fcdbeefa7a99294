"""Tiny models made on the spot, and second moments by loops over examples."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

VOCABULARY = 20
LORA = {"r": 2, "lora_alpha": 6, "lora_dropout": 0.3}


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(sizes=(6, 4), width=4, seed=1):
    drawn = generator(seed)
    return [(torch.randn(n, width, generator=drawn, dtype=torch.float64),
             torch.randint(3, (n,), generator=drawn)) for n in sizes]  # fmt: skip


def network(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double()


def t5() -> nn.Module:
    torch.manual_seed(0)
    config = T5Config(vocab_size=VOCABULARY, d_model=8, d_ff=12, d_kv=4, num_layers=1, num_heads=2,
                      decoder_start_token_id=0, dropout_rate=0.2)  # fmt: skip
    return T5ForConditionalGeneration(config).double()


def texts(count=2, seed=1):
    drawn, found = generator(seed), []
    for _ in range(count):
        tokens = torch.randint(1, VOCABULARY, (3, 7), generator=drawn)
        mask = torch.ones_like(tokens)
        mask[0, 5:] = 0
        labels = torch.randint(1, VOCABULARY, (3, 4), generator=drawn)
        labels[0, 2:] = -100
        found.append({"input_ids": tokens, "attention_mask": mask, "labels": labels})
    return found


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, num_labels=3,
                        num_attention_heads=2, intermediate_size=12)  # fmt: skip
    return BertForSequenceClassification(config).double()


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=8, n_embd=8, n_layer=1, n_head=2,
                        bos_token_id=0, eos_token_id=0)  # fmt: skip
    return GPT2LMHeadModel(config).double()


def with_lora(model: nn.Module, targets: list[str], filled: bool = True, **options) -> nn.Module:
    config = LoraConfig(target_modules=targets, **(LORA | options))
    adapted = get_peft_model(model, config).double()
    drawn = generator(3)
    for name, parameter in adapted.named_parameters():
        if filled and "lora_B" in name:
            values = torch.randn(parameter.shape, generator=drawn, dtype=torch.float64)
            parameter.data = 0.2 * values
    return adapted


def dense(side) -> Tensor:
    """The matrix of either kind of factor."""
    return side.product(torch.eye(side.dim, dtype=side.like.dtype))


def single_output_moments(model: nn.Module, layer: nn.Module, inputs: Tensor):
    """``S`` and ``D`` of a linear layer for a model with one output, example by example.

    With one output the random signs of a feature memory square to one: nothing is left to chance.
    """
    seen = {}

    def note(_module, args, out):
        seen["a"], seen["out"] = args[0].detach(), out

    handle = layer.register_forward_hook(note)
    s, d, rows = 0, 0, 0
    for x in inputs:
        value = model(x[None]).sum()
        (gradient,) = torch.autograd.grad(value, seen["out"])
        for a, delta in zip(seen["a"].flatten(0, -2), gradient.flatten(0, -2), strict=True):
            s, d, rows = s + torch.outer(a, a), d + torch.outer(delta, delta), rows + 1
    handle.remove()
    return s / rows, d / len(inputs)
