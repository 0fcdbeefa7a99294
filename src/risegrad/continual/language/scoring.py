"""Scores of a model on one split: what it writes by itself, and which label it finds likeliest."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from risegrad.continual.language.items import Answered, padded
from risegrad.continual.language.kit import LanguageKit
from risegrad.continual.language.likelihood import label_scores
from risegrad.continual.language.model import LanguageModel

PUNCTUATION = str.maketrans("", "", string.punctuation)
BATCH = 64


def normalized(text: str) -> str:
    """As the benchmark compares answers: lower case, no ASCII punctuation, single spaces.

    >>> normalized("  Science, or\\nTechnology. ")
    'science or technology'
    """
    return " ".join(text.lower().translate(PUNCTUATION).split())


@torch.no_grad()
def hits(kit: LanguageKit, task: int, split: str) -> Tensor:
    """Right answers by exact match, by constrained choice, and all of them, in this process."""
    data, texts = kit.answered(task, split), getattr(kit.stream[task], split)
    mine = kit.devices.share(range(len(texts)))
    # Long ones first: a batch of like lengths pads little, and memory shows its peak at once.
    lengths = data.prompts.lengths()
    order = sorted(mine, key=lambda index: -lengths[index])
    right = torch.zeros(3, dtype=torch.int64, device=kit.devices.device)
    size = max(kit.loop.batch, BATCH)
    for start in range(0, len(order), size):
        indices = order[start : start + size]
        exact, chosen = _answers(kit, task, data, indices)
        # A label outside the set is never right, also where nothing is left of it: "-" is "".
        right[0] += sum(
            texts.labels[i] >= 0 and answer == normalized(texts.answers[i])
            for answer, i in zip(exact, indices, strict=True)
        )
        right[1] += sum(place == texts.labels[i] for place, i in zip(chosen, indices, strict=True))
        right[2] += len(indices)
    return right


def _answers(
    kit: LanguageKit, task: int, data: Answered, indices: Sequence[int]
) -> tuple[list[str], list[int]]:
    """Normalized free answers, and the places of the likeliest labels of the task."""
    model, device = kit.model, kit.devices.device
    side = "left" if model.kind == "decoder" else "right"
    pad = int(model.tokenizer.pad_token_id)
    rows = [data.prompts[index] for index in indices]
    source, mask = (tensor.to(device) for tensor in padded(rows, pad, side))
    classes = kit.stream[task].classes
    with kit.devices.autocast():
        if kit.classifier is not None:
            logits = kit.classifier(model.net, source, mask)
            free = [normalized(kit.labels[place]) for place in logits.argmax(1).tolist()]
            own = [kit.labels.index(label) for label in classes]
            return free, logits[:, own].argmax(1).tolist()
        encoded = None
        if model.kind == "seq2seq":
            encoded = model.net.get_encoder()(input_ids=source, attention_mask=mask)
        free = [normalized(text) for text in written(model, source, mask, encoded)]
        labels = [kit.written(label) for label in classes]
        likely = label_scores(model, source, mask, labels, encoded)
    return free, likely.argmax(1).tolist()


def written(model: LanguageModel, source: Tensor, mask: Tensor, encoded: Any) -> list[str]:
    """What the model writes, always taking the likeliest token."""
    from transformers import GenerationConfig

    tokenizer, own = model.tokenizer, model.net.generation_config
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=model.settings.target_length,
        do_sample=False,
        num_beams=1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=getattr(own, "decoder_start_token_id", None),
    )
    given: dict[str, Any] = {"input_ids": source} if encoded is None else {}
    if encoded is not None:
        given["encoder_outputs"] = encoded
    ids = model.net.generate(**given, attention_mask=mask, generation_config=config)
    if encoded is None:
        ids = ids[:, source.shape[1] :]
    texts: list[str] = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return texts
