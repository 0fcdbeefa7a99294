"""From settings to a model that has learned its historical task, and batches of both tasks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn

from risegrad.continual.language.model import pretrained
from risegrad.curvature.objective import Loss, check_loss
from risegrad.foresight.examples import image_parts, text_parts
from risegrad.foresight.settings import ModelSettings, Settings
from risegrad.optional import need


@dataclass(frozen=True)
class Problem:
    """A model, what it must keep, what it is to learn, and more of the former to warm it up."""

    model: nn.Module
    historical: Sequence[Any]
    incoming: Sequence[Any]
    loss: Loss | None = None
    warm: Sequence[Any] = ()


def build(settings: Settings) -> Problem:
    """Make the model, read the data, learn the historical task."""
    makers: dict[str, Callable[[Settings], Problem]] = {
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


def _from_python(settings: Settings) -> Problem:
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


def _from_timm(settings: Settings) -> Problem:
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


def _from_transformers(settings: Settings) -> Problem:
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
