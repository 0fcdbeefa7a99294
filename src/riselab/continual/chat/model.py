"""A causal chat model with its tokenizer, its trained parameters, and what it is kept by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from risegrad.common.imports import need
from risegrad.curvature.batches import IGNORED
from risegrad.keeping.dreams import dreamed
from riselab.continual.chat.abilities import instructions
from riselab.continual.chat.cache import Made, cached, content_of
from riselab.continual.chat.settings import ChatModelSettings, ChatRun
from riselab.continual.chat.texts import Chat, ChatTexts, greedy

DREAM_BATCH = 30


def load(settings: ChatModelSettings, device: torch.device) -> tuple[Any, Any]:
    """Model and tokenizer, in float32 and without dropout."""
    transformers = need("transformers", "language", "a chat model")
    place = settings.weights or settings.name
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    # On a CPU, torch's fused attention takes three times as long in bfloat16.
    how = {"attn_implementation": "eager"} if device.type == "cpu" else {}
    kind = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(place, dtype=torch.float32, **how).to(device).eval()
    return model, tokenizer


def trainable(model: Any) -> dict[str, Parameter]:
    """What trains, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@contextmanager
def averaged_back(model: Any, began: dict[str, Tensor], share: float) -> Iterator[None]:
    """Weights this share of the way from where training began; of LoRA, the product's share."""
    if share == 1:
        yield
        return
    layers = [m for m in model.modules() if hasattr(m, "scale_layer") and hasattr(m, "lora_A")]
    ended = {} if layers else {n: p.detach().clone() for n, p in trainable(model).items()}
    scaling = [dict(layer.scaling) for layer in layers]
    try:
        for layer in layers:
            layer.scale_layer(share)
        if not layers:
            put(model, {n: torch.lerp(began[n].to(p.device), p, share) for n, p in ended.items()})
        yield
    finally:
        for layer, was in zip(layers, scaling, strict=True):
            layer.scaling.update(was)
        put(model, ended)


@torch.no_grad()
def put(model: Any, values: dict[str, Tensor]) -> None:
    """Set trained parameters by name."""
    if values:
        for name, parameter in trainable(model).items():
            parameter.copy_(values[name])


def old_chats(model: Any, tokenizer: Any, settings: ChatRun, count: int, seed: int) -> list[Chat]:
    """Chats of the present model: its own, or its answers to real prompts."""
    prompts: list[str] = []
    if settings.rule.old == "prompts":
        prompts = instructions(settings.abilities.folder, settings.abilities)[1]
        if len(prompts) < count:
            raise ValueError(f"rule.examples must be at most {len(prompts)} prompts, got {count}")
        prompts = prompts[:count]
    return kept_chats(model, tokenizer, prompts, count, settings.rule.tokens, seed)


def kept_chats(
    model: Any, tokenizer: Any, prompts: list[str], count: int, tokens: int, seed: int
) -> list[Chat]:
    """The model's greedy answers to these prompts; without any, chats that it writes itself."""

    def make() -> Made:
        if prompts:
            chats = greedy(model, ChatTexts(tokenizer), prompts, tokens)
        else:
            made = dreamed(model, tokenizer, count, batch=DREAM_BATCH, length=tokens, seed=seed)
            chats = [chat for batch in made for chat in _chats(batch)]
        return {}, {"chats": chats}

    key = {
        "old": 1,
        "model": content_of(model),
        "prompts": prompts,
        "count": count,
        "tokens": tokens,
        "seed": seed,
    }
    return [Chat(*chat) for chat in cached(key, make)[1]["chats"]]


def _chats(batch: dict[str, Tensor]) -> Iterator[Chat]:
    for tokens, mask, labels in zip(
        batch["input_ids"], batch["attention_mask"].bool(), batch["labels"], strict=True
    ):
        yield Chat(tokens[mask].tolist(), int((labels != IGNORED).sum()))


def by_length(chats: Sequence[Chat], size: int) -> list[Sequence[Chat]]:
    """Groups of about one length."""
    ordered = sorted(chats, key=lambda chat: len(chat.tokens))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]
