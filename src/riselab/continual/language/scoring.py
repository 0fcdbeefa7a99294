"""Scores of a model on one split: what it writes by itself, and which label it finds likeliest."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from riselab.continual.language.batches import IGNORED, Answered, padded
from riselab.continual.language.kit import LanguageKit
from riselab.continual.language.models import LanguageModel

PACKABLE = ("t5", "mt5")
"""Encoder-decoders whose positions are relative only: a block's place makes no difference."""
ROWS = 2048
"""Places whose scores over the whole vocabulary are in memory at one time."""


def label_scores(
    model: LanguageModel, source: Tensor, mask: Tensor, labels: Sequence[Tensor], encoded: Any
) -> Tensor:
    """``[n, labels]``: the log-probability of each label's tokens, its end included.

    ``encoded`` is what the encoder made of the source; a decoder gets None.
    """
    states = None if encoded is None else encoded.last_hidden_state
    if model.model_type in PACKABLE and states is not None:
        return _packed(model, mask, labels, states)
    return _expanded(model, source, mask, labels, states)


def _packed(model: LanguageModel, mask: Tensor, labels: Sequence[Tensor], states: Tensor) -> Tensor:
    device = states.device
    begin = torch.tensor([model.net.config.decoder_start_token_id])
    inputs = torch.cat([torch.cat([begin, label[:-1]]) for label in labels]).to(device)
    targets = torch.cat(list(labels)).to(device)
    block = _blocks([len(label) for label in labels]).to(device)
    seen = _additive(_inside(block), states.dtype)
    found = []
    for part in _parts(len(states), len(targets)):
        size = len(states[part])
        logits = model.net(
            encoder_outputs=(states[part],),
            attention_mask=mask[part],
            decoder_input_ids=inputs.expand(size, -1),
            decoder_attention_mask=seen.expand(size, 1, -1, -1),
            use_cache=False,
        ).logits
        found.append(_sums(logits, targets.expand(size, -1), block, len(labels)))
    return torch.cat(found)


def _expanded(
    model: LanguageModel, source: Tensor, mask: Tensor, labels: Sequence[Tensor],
    states: Tensor | None,
) -> Tensor:  # fmt: skip
    """For models with positions of their own: each example once per label, after the prompt of a
    decoder, which is padded on the left."""
    count, width = len(labels), source.shape[1] if states is None else 0
    targets = pad_sequence(list(labels), batch_first=True, padding_value=IGNORED).to(mask.device)
    found = []
    for part in _parts(len(mask), count * (width + targets.shape[1])):
        size = len(mask[part])
        answers, seen = targets.repeat(size, 1), mask[part].repeat_interleave(count, 0)
        given, places = answers != IGNORED, answers.clamp(min=0)
        if states is None:
            whole = torch.cat([seen, given.to(seen.dtype)], 1)
            inputs = torch.cat([source[part].repeat_interleave(count, 0), places], 1)
            positions = (whole.cumsum(1) - 1).clamp(min=0)
            logits = model.net(
                input_ids=inputs, attention_mask=whole, position_ids=positions, use_cache=False
            ).logits[:, width - 1 : -1]
        else:
            encoded = (states[part].repeat_interleave(count, 0),)
            logits = model.net(
                encoder_outputs=encoded, attention_mask=seen, labels=answers, use_cache=False
            ).logits
        found.append((_chosen(logits, places) * given).sum(1).view(size, count))
    return torch.cat(found)


def _sums(logits: Tensor, targets: Tensor, block: Tensor, count: int) -> Tensor:
    """Log-probabilities of the targets, added up block by block."""
    chosen = _chosen(logits, targets)
    zeros = torch.zeros(len(logits), count, device=logits.device)
    return zeros.index_add(1, block, chosen)


def _chosen(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.float()
    picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return picked - logits.logsumexp(-1)


def _blocks(sizes: Sequence[int]) -> Tensor:
    """Which block each place belongs to: sizes 2 and 1 give 0, 0, 1."""
    return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(list(sizes)))


def _inside(block: Tensor) -> Tensor:
    """Which place may look at which: back, within the block."""
    same = block.unsqueeze(0) == block.unsqueeze(1)
    return same.tril()


def _additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero where it is allowed to look, and as low as it goes elsewhere."""
    lowest = torch.finfo(dtype).min
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(
        ~allowed, lowest
    )


def _parts(examples: int, rows: int) -> list[slice]:
    """Examples in parts of about ``ROWS`` rows."""
    size = max(1, ROWS // max(rows, 1))
    return [slice(start, start + size) for start in range(0, examples, size)]


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
