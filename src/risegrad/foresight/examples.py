"""Batches of the two tasks, from the images and texts that continual learning reads too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from risegrad.continual.language.build import TextSplit, build_stream
from risegrad.continual.language.items import Answered, TextItems
from risegrad.continual.language.prompts import answer_tokens, prompt_limit
from risegrad.continual.language.settings import LanguageStreamSettings
from risegrad.continual.language.tokens import Limit, tokenized
from risegrad.continual.streams.arrays import npz
from risegrad.continual.streams.files import folder
from risegrad.continual.streams.views import resize
from risegrad.draws import mix
from risegrad.foresight.settings import DataSettings

Parts = tuple[list[Any], list[Any], list[Any]]
"""Historical and incoming batches, and further historical ones to warm up on."""
WARM = 16
"""Batches to warm up on, where there are as many."""
ANSWER_LENGTH = 16
HELD_OUT = 0.2
"""Of a folder of images, which may serve as a test set elsewhere."""


def image_parts(
    data: DataSettings, size: int, mean: Sequence[float], std: Sequence[float], seed: int
) -> Parts:
    """Training images of an ``.npz``, or of a folder of classes, resized and normalized."""
    path = _existing(data.path)
    images = (folder(path, HELD_OUT) if path.is_dir() else npz(path)).train
    classes = list(dict.fromkeys([*data.historical.classes, *data.incoming.classes]))
    shift, scale = (torch.tensor(values).view(3, 1, 1) for values in (mean, std))

    def batch(numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        views = [resize(images.load(n)[None], size, size, "bicubic") for n in numbers]
        target = torch.tensor([classes.index(int(images.labels[n])) for n in numbers])
        return (torch.cat(views).float() / 255 - shift) / scale, target

    def numbers(chosen: Sequence[int], stream: int) -> list[int]:
        found = np.flatnonzero(np.isin(images.labels, chosen)).tolist()
        return _shuffled(found, mix(seed, stream))

    old, new = numbers(data.historical.classes, 1), numbers(data.incoming.classes, 2)
    return _cut(old, new, data, batch)


def text_parts(
    data: DataSettings, tokenizer: Any, kind: Literal["seq2seq", "decoder"], seed: int
) -> Parts:
    """Prompts and answers as the language hosts train on them, for a model that writes."""
    names = (*data.historical.tasks, *data.incoming.tasks)
    most = max(data.historical.batches + WARM, data.incoming.batches) * data.batch
    stream = build_stream(
        LanguageStreamSettings("local", names, data=data.path, train_size=most, split_seed=seed)
    )
    limit = prompt_limit(tokenizer, data.tokens, "text")
    tasks = {place: _answered(tokenizer, task.train, limit) for place, task in enumerate(stream)}
    items = TextItems(kind, tasks, int(tokenizer.pad_token_id))

    def batch(refs: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
        found = items.fetch(refs, epoch=0)
        return {
            "input_ids": found.source,
            "attention_mask": found.mask,
            "labels": found.targets,
        }

    def refs(chosen: range, stream: int) -> list[tuple[int, int]]:
        found = [(place, i) for place in chosen for i in range(len(tasks[place].prompts))]
        return _shuffled(found, mix(seed, stream))

    kept = len(data.historical.tasks)
    return _cut(refs(range(kept), 1), refs(range(kept, len(names)), 2), data, batch)


def _answered(tokenizer: Any, split: TextSplit, limit: Limit) -> Answered:
    prompts = tokenized(tokenizer, split.prompts, limit, None)
    return Answered.of(prompts, split.answers, lambda t: answer_tokens(tokenizer, t, ANSWER_LENGTH))


def _cut(
    old: list[Any], new: list[Any], data: DataSettings, batch: Callable[[Sequence[Any]], Any]
) -> Parts:
    """Measured batches first; what is left of the historical task warms the model up."""
    size = data.batch
    needed = {"historical": (old, data.historical), "incoming": (new, data.incoming)}
    for name, (found, part) in needed.items():
        if len(found) < part.batches * size:
            raise RuntimeError(
                f"data.{name} needs {part.batches} batches of {size}, got {len(found)} examples"
            )
    kept = [batch(old[i * size : (i + 1) * size]) for i in range(data.historical.batches)]
    learned = [batch(new[i * size : (i + 1) * size]) for i in range(data.incoming.batches)]
    rest = old[data.historical.batches * size :]
    count = min(WARM, len(rest) // size)
    return kept, learned, [batch(rest[i * size : (i + 1) * size]) for i in range(count)]


def _shuffled(items: list[Any], seed: int) -> list[Any]:
    order = np.random.default_rng(seed).permutation(len(items))
    return [items[i] for i in order]


def _existing(path: str) -> Path:
    if not path or not Path(path).exists():
        raise RuntimeError(f"data.path must exist (--data on the command line), got {path!r}")
    return Path(path)
