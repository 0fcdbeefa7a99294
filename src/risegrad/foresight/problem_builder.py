"""From settings to a model that has learned its historical task, and batches of both tasks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from risegrad.common.optional_imports import need
from risegrad.continual.language.language_models import pretrained
from risegrad.continual.language.prompt_tokens import Limit, answer_tokens, prompt_limit, tokenized
from risegrad.continual.language.streams.text_stream_build import TextSplit, build_stream
from risegrad.continual.language.streams.text_stream_settings import LanguageStreamSettings
from risegrad.continual.language.text_batches import Answered, TextItems
from risegrad.continual.vision.streams.array_sources import npz
from risegrad.continual.vision.streams.image_files import folder
from risegrad.continual.vision.streams.image_views import resize
from risegrad.core.draws import mix
from risegrad.curvature.operators.objective import Loss, check_loss
from risegrad.foresight.foresight_settings import DataSettings, ForesightSettings, ModelSettings

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
    prompts = tokenized(tokenizer, split.prompts, limit)
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


@dataclass(frozen=True)
class Problem:
    """A model, what it must keep, what it is to learn, and more of the former to warm it up."""

    model: nn.Module
    historical: Sequence[Any]
    incoming: Sequence[Any]
    loss: Loss | None = None
    warm: Sequence[Any] = ()


def build(settings: ForesightSettings) -> Problem:
    """Make the model, read the data, learn the historical task."""
    makers: dict[str, Callable[[ForesightSettings], Problem]] = {
        "python": _from_python, "timm": _from_timm, "transformers": _from_transformers
    }  # fmt: skip
    torch.manual_seed(settings.diagnosis.seed)
    problem = makers[settings.model.source](settings)
    warm_up(problem, settings.warmup.steps, settings.warmup.learning_rate)
    return problem


def warm_up(problem: Problem, steps: int, learning_rate: float) -> None:
    """AdamW on the historical task."""
    trained = [p for p in problem.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate)
    problem.model.train()
    for batch in islice(cycle(problem.warm or problem.historical), steps):
        optimizer.zero_grad()
        training_loss(problem, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    optimizer.zero_grad()
    problem.model.eval()


def training_loss(problem: Problem, batch: Any) -> Tensor:
    """The loss of one batch in the model's present mode."""
    if isinstance(batch, dict):
        found: Tensor = problem.model(**batch).loss
        return found
    inputs, target = batch
    loss: Tensor = check_loss(problem.loss)(problem.model(inputs), target)
    return loss


def _from_python(settings: ForesightSettings) -> Problem:
    module, _, name = settings.model.name.partition(":")
    with _importing_from(settings.folder):
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise RuntimeError(
                f"model.name {settings.model.name!r} cannot be used: {error}"
            ) from error
    made = function(**settings.model.arguments)
    if isinstance(made, Problem):
        return made
    if isinstance(made, tuple) and len(made) in (3, 4):
        return Problem(*made)
    raise RuntimeError(
        f"{settings.model.name} must return (model, historical, incoming) or the same with a loss, "
        f"got {type(made).__name__}"
    )


@contextmanager
def _importing_from(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _from_timm(settings: ForesightSettings) -> Problem:
    timm = need("timm", "vision")
    s, d = settings.model, settings.data
    classes = [*d.historical.classes, *d.incoming.classes]
    options: dict[str, Any] = {"num_classes": len(set(classes)), **s.arguments}
    if s.image_size:
        options["img_size"] = s.image_size
    if s.path:
        # timm's own loading resamples position embeddings and drops a head of another size;
        # some models are set to read JAX archives unless told otherwise.
        options |= {
            "pretrained": True,
            "pretrained_cfg_overlay": {"file": s.path, "custom_load": False},
        }
    model = timm.create_model(s.name, **options)
    config = model.pretrained_cfg
    size = s.image_size or config["input_size"][-1]
    parts = image_parts(d, size, config["mean"], config["std"], settings.diagnosis.seed)
    adapted = with_lora(model, s, default=("qkv",), kept=("head",)) if s.lora else model
    return Problem(adapted, *parts[:2], warm=parts[2])


def _from_transformers(settings: ForesightSettings) -> Problem:
    need("transformers", "language")
    s = settings.model
    place = s.path or s.name
    if not place:
        raise RuntimeError(
            "model.path is needed: a transformers folder (--model on the command line)"
        )
    model, tokenizer, kind = pretrained(place)
    if kind == "encoder":
        raise RuntimeError(f"model {place!r} must write answers, got an encoder")
    parts = text_parts(settings.data, tokenizer, kind, settings.diagnosis.seed)
    adapted = with_lora(model, s, default=(), kept=()) if s.lora else model
    return Problem(adapted, *parts[:2], warm=parts[2])


def with_lora(
    model: nn.Module, s: ModelSettings, default: Sequence[str], kept: Sequence[str]
) -> nn.Module:
    """LoRA on the targets; ``kept`` modules (a new head) are trained whole."""
    peft = need("peft", "language")
    targets = list(s.targets or default) or None
    config = peft.LoraConfig(
        r=s.lora, lora_alpha=2 * s.lora, target_modules=targets, modules_to_save=list(kept) or None
    )
    adapted: nn.Module = peft.get_peft_model(model, config)
    return adapted
