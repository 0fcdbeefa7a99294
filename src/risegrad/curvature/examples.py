"""Batches of real examples: images from an .npz of arrays, texts from a folder of tasks."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from risegrad.curvature.settings import DataSettings, Part
from risegrad.draws import mix

Parts = tuple[list[Any], list[Any], list[Any]]
"""Historical and incoming batches, and further historical ones to warm up on."""
WARM = 16
"""Batches to warm up on, where there are as many."""


def image_parts(
    data: DataSettings, size: int, mean: Sequence[float], std: Sequence[float], seed: int
) -> Parts:
    """Arrays ``train_images`` (N, H, W, 3) uint8 and ``train_labels``, resized and normalized."""
    path = _existing(data.path)
    with np.load(path) as arrays:
        for key in ("train_images", "train_labels"):
            if key not in arrays:
                raise RuntimeError(f"{path.name} must hold {key}; it has {', '.join(arrays)}")
        images, labels = arrays["train_images"], np.asarray(arrays["train_labels"])
    classes = list(dict.fromkeys([*data.historical.classes, *data.incoming.classes]))
    shift = torch.tensor(mean).view(3, 1, 1)
    scale = torch.tensor(std).view(3, 1, 1)

    def batch(numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        pixels = torch.from_numpy(images[list(numbers)]).permute(0, 3, 1, 2).float() / 255
        wide = interpolate(pixels, size=(size, size), mode="bicubic", antialias=True)
        target = torch.tensor([classes.index(int(labels[n])) for n in numbers])
        return (wide - shift) / scale, target

    def numbers(part: Part, stream: int) -> list[int]:
        found = np.flatnonzero(np.isin(labels, part.classes)).tolist()
        return _shuffled(found, mix(seed, stream))

    old, new = numbers(data.historical, 1), numbers(data.incoming, 2)
    return _cut(old, new, data, batch)


def text_parts(data: DataSettings, tokenizer: Any, seed: int) -> Parts:
    """``TASK/train.json.gz`` (or ``test``): from ``sentence`` the model generates ``label``."""
    folder = _existing(data.path)

    def examples(part: Part, stream: int) -> list[tuple[str, str]]:
        found = [pair for task in part.tasks for pair in _task(folder, task)]
        return _shuffled(found, mix(seed, stream))

    def batch(pairs: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
        options = {"return_tensors": "pt", "padding": True, "truncation": True}
        source = tokenizer([text for text, _ in pairs], max_length=data.tokens, **options)
        target = tokenizer([label for _, label in pairs], max_length=16, **options)
        labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
        return {
            "input_ids": source.input_ids,
            "attention_mask": source.attention_mask,
            "labels": labels,
        }

    old, new = examples(data.historical, 1), examples(data.incoming, 2)
    return _cut(old, new, data, batch)


def _task(folder: Path, task: str) -> list[tuple[str, str]]:
    for name in ("train.json.gz", "test.json.gz"):
        path = folder / task / name
        if path.exists():
            with gzip.open(path, "rt", encoding="utf-8") as stream:
                rows = json.load(stream)
            return [(f"{task}: {row['sentence']}", str(row["label"])) for row in rows]
    raise RuntimeError(
        f"task {task!r} has neither train.json.gz nor test.json.gz under the data path"
    )


def _cut(old: list[Any], new: list[Any], data: DataSettings, batch: Any) -> Parts:
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
