"""Examples that a generative model samples itself, for when no old data is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from risegrad.common.checks import check_int, check_number, check_positive_int
from risegrad.core.draws import mix
from risegrad.core.undisturbed import Generators
from risegrad.curvature.operators.batch_forms import IGNORED
from risegrad.curvature.operators.objective import evaluating

Batch = dict[str, Tensor]


@torch.no_grad()
def dreamed(
    model: nn.Module,
    tokenizer: Any,
    n: int,
    *,
    prompts: Sequence[str] | None = None,
    length: int = 64,
    batch: int = 16,
    temperature: float = 1.0,
    seed: int = 0,
) -> list[Batch]:
    """Batches for ``remember``, ``n`` examples in all, in transformers' form.

    A causal model writes from its first token, or goes on from ``prompts`` (used in turn); an
    encoder-decoder answers the prompts, or random tokens where there are none. Tokens are drawn
    from the model's own probabilities (at ``temperature``), whatever its ``generation_config`` asks
    for. Nothing of the model or of the global random state is changed.
    """
    check_positive_int("n", n)
    check_positive_int("batch", batch)
    check_positive_int("length", length)
    check_number("temperature", temperature, above=0)
    if not callable(getattr(model, "generate", None)):
        raise TypeError(f"model must be one that generates text, got {type(model).__name__}")
    if prompts is not None and not prompts:
        raise ValueError("prompts must hold at least one text, got none")
    seed, generators = check_int("seed", seed), Generators()
    found = []
    try:
        with evaluating(model):
            for start in range(0, n, batch):
                generators.seed(mix(seed, start) % 2**63)  # transformers draws from the global one
                count = min(batch, n - start)
                begun = _begun(model, tokenizer, prompts, start, count, length)
                found.append(_answered(model, tokenizer, begun, length, temperature))
    finally:
        generators.put_back()
    return found


def _begun(
    model: nn.Module,
    tokenizer: Any,
    prompts: Sequence[str] | None,
    start: int,
    count: int,
    length: int,
) -> list[Tensor]:
    """The tokens that each example starts from."""
    if prompts is not None:
        texts = [prompts[(start + i) % len(prompts)] for i in range(count)]
        return [torch.tensor(tokenizer(text)["input_ids"]) for text in texts]
    if _is_seq2seq(model):
        special = {t for t in (tokenizer.pad_token_id, _end(tokenizer)) if t is not None}
        config: Any = model.config
        plain = torch.tensor([t for t in range(config.vocab_size) if t not in special])
        return list(plain[torch.randint(len(plain), (count, length))])
    first = next((t for t in (tokenizer.bos_token_id, _end(tokenizer)) if t is not None), None)
    if first is None:
        raise ValueError("the tokenizer has no first token (bos or eos): pass prompts=")
    return [torch.tensor([first])] * count


def _answered(
    model: nn.Module, tokenizer: Any, begun: list[Tensor], length: int, temperature: float
) -> Batch:
    device, seq2seq = next(model.parameters()).device, _is_seq2seq(model)
    end = _end(tokenizer)
    padding = next((t for t in (tokenizer.pad_token_id, end) if t is not None), 0)
    # A causal model goes on at the right, so what comes before is padded on the left.
    side = "right" if seq2seq else "left"
    ids = pad_sequence(begun, batch_first=True, padding_value=padding, padding_side=side)
    ones = [torch.ones_like(tokens) for tokens in begun]
    mask = pad_sequence(ones, batch_first=True, padding_side=side)
    ends = {"pad_token_id": padding, "eos_token_id": end}
    with _sampling(model, {"temperature": temperature, "max_new_tokens": length} | ends) as chosen:
        generate: Any = model.generate
        made = generate(input_ids=ids.to(device), attention_mask=mask.to(device), **chosen).cpu()
    new = [_until(row[1 if seq2seq else ids.shape[1] :], end) for row in made]
    if seq2seq:
        labels = pad_sequence(new, batch_first=True, padding_value=IGNORED)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}
    whole = [torch.cat(parts) for parts in zip(begun, new, strict=True)]
    return {
        "input_ids": pad_sequence(whole, batch_first=True, padding_value=padding),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in whole], batch_first=True),
        "labels": pad_sequence(whole, batch_first=True, padding_value=IGNORED),
    }


BEGINNINGS = ("decoder_start_token_id", "bos_token_id")
"""What generating needs to know of a model beside its ends."""


@contextmanager
def _sampling(model: nn.Module, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Plain sampling, whatever the model's own ``generation_config`` asks for.

    transformers fills what an option leaves open from the model's own, so that steps aside.
    """
    plain = {"do_sample": True, "top_k": 0, **options}
    holders: list[Any] = [m for m in model.modules() if "generation_config" in vars(m)]
    if not holders:
        yield plain
        return
    own = [holder.generation_config for holder in holders]
    begins = {name: getattr(own[0], name, None) for name in BEGINNINGS}
    fresh = type(own[0])(**plain, **begins)
    try:
        for holder in holders:
            holder.generation_config = fresh
        yield {"generation_config": fresh}
    finally:
        for holder, found in zip(holders, own, strict=True):
            holder.generation_config = found


def _until(tokens: Tensor, end: int | None) -> Tensor:
    """Up to the end of the text, its mark included; what comes after is padding."""
    ends = (tokens == end).nonzero() if end is not None else tokens.new_empty(0)
    return tokens[: int(ends[0]) + 1] if len(ends) else tokens


def _end(tokenizer: Any) -> int | None:
    found: int | None = tokenizer.eos_token_id
    return found


def _is_seq2seq(model: nn.Module) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False))
