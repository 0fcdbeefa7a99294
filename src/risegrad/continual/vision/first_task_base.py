"""A base for streams without pretrained weights: the whole ViT learns what comes first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from risegrad.common.seeds import generator_for, seed_for
from risegrad.continual.batch_plan import Loader, epoch_batches
from risegrad.continual.devices import Devices
from risegrad.continual.session_training import Loop
from risegrad.continual.stream import Stream, Task
from risegrad.continual.training_budget import TrainingBudget
from risegrad.continual.vision.backbone import ViTSettings, feature_width, features
from risegrad.continual.vision.classifier_heads import Head
from risegrad.continual.vision.image_batches import AugmentedImages
from risegrad.continual.vision.streams import ImageSplit


def train_base(
    vit: nn.Module,
    tasks: Sequence[Task[ImageSplit]],
    settings: ViTSettings,
    loop: Loop,
    devices: Devices,
    seed: int,
) -> Head:
    """AdamW on all of the ViT with a linear head, which is returned; frozen again afterwards.

    Several tasks have the same classes, and are learned together. Every process of a
    run does all of it alone: it is short, and they end with the same weights.
    """
    head = new_head(vit, tasks, seed)
    both = nn.ModuleList([vit, head]).to(devices.device).requires_grad_(True).train()
    budget = TrainingBudget(epochs=settings.base_epochs, optimizer="adamw", lr=settings.base_lr)
    optimizer = budget.make_optimizer(both.parameters())
    items = AugmentedImages(Stream("base", tuple(tasks)), seed_for(seed, "base"))
    loader = Loader(items, loop.workers)
    with torch.random.fork_rng(devices=range(torch.accelerator.device_count())):
        torch.manual_seed(seed_for(seed, "base"))
        for epoch in range(budget.epochs):
            optimizer.param_groups[0]["lr"] = budget.lr_at(epoch)
            for fetched in loader.batches(_batches(tasks, loop, seed, epoch), epoch):
                batch = fetched.to(devices.device)
                optimizer.zero_grad()
                logits = head(features(vit, batch.inputs))
                cross_entropy(logits, batch.labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    both.requires_grad_(False).eval()
    return head


def new_head(vit: nn.Module, tasks: Sequence[Task[ImageSplit]], seed: int) -> Head:
    """The head as its training begins."""
    head = Head("linear", feature_width(vit))
    head.grow(len(tasks[0].classes), generator_for(seed, "base head"))
    return head


def _batches(
    tasks: Sequence[Task[ImageSplit]], loop: Loop, seed: int, epoch: int
) -> list[list[tuple[int, int]]]:
    """Of all tasks, each batch of one; those of several come in a random order."""
    plan = [
        refs
        for number, task in enumerate(tasks)
        for refs in epoch_batches(len(task.train), loop.batch, seed=seed, task=number, epoch=epoch)
    ]
    if len(tasks) == 1:
        return plan
    order = torch.randperm(len(plan), generator=generator_for(seed, "base order", epoch))
    return [plan[place] for place in order.tolist()]
