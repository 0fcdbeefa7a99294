"""A base for streams without pretrained weights: the whole ViT learns what comes first."""

from __future__ import annotations

import hashlib
import platform
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from risegrad.common.seal import digest
from risegrad.common.seeds import generator_for, seed_for
from riselab.common.folders import cache_folder
from riselab.common.inputs import essential, look_at
from riselab.common.settings import as_plain
from riselab.continual.batches import Loader, epoch_batches
from riselab.continual.checkpoints import read_checked, write_checked
from riselab.continual.devices import Devices
from riselab.continual.host import Stream, Task, TrainingBudget
from riselab.continual.training import Loop
from riselab.continual.vision.kit import AugmentedImages
from riselab.continual.vision.models import MLP, Head, ViTSettings, feature_width, features
from riselab.continual.vision.streams import ImageSplit, OwnImageStream

if TYPE_CHECKING:
    from riselab.continual.vision.run import VisionRun


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


MOST = 32
"""Bases that are kept; the oldest makes room."""
LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "torchvision", "timm", "pillow")
"""What images, their views and the network's code come from."""


def taught_base(
    vit: nn.Module, tasks: Sequence[Task[ImageSplit]], settings: VisionRun, devices: Devices
) -> Head:
    """``train_base``, or what it gave the last time: runs that share a base train it once."""
    file = _file(vit, len(tasks), settings, devices)
    if file is not None and file.exists():
        head = new_head(vit, tasks, settings.seed)
        both = nn.ModuleList([vit, head])
        try:
            both.load_state_dict(read_checked(file))
            both.to(devices.device).requires_grad_(False).eval()
            return head
        except (OSError, ValueError, RuntimeError) as error:
            warnings.warn(f"{error}: the base is trained again", stacklevel=2)
    head = train_base(vit, tasks, settings.model, settings.loop, devices, settings.seed)
    if file is not None:
        state = nn.ModuleList([vit, head]).state_dict()
        with suppress(OSError):  # a cache that cannot be written costs time, nothing else
            file.parent.mkdir(parents=True, exist_ok=True)
            write_checked(file, {name: value.cpu() for name, value in state.items()})
            for old in sorted(file.parent.glob("*.base"), key=lambda f: f.stat().st_mtime)[:-MOST]:
                old.unlink(missing_ok=True)
    return head


def _file(vit: nn.Module, tasks: int, settings: VisionRun, devices: Devices) -> Path | None:
    """Where the base lies or would lie, by all that it depends on; None where none is kept."""
    folder = cache_folder("bases")
    # A plugin's code may change without our seeing it.
    model, stream = settings.model, settings.stream
    foreign = isinstance(stream, OwnImageStream) or (model.own and model.name != MLP)
    if folder is None or foreign:
        return None
    known = {
        "start": fingerprint(vit.state_dict()),
        "model": as_plain(model),
        "stream": as_plain(stream),
        "tasks": tasks,
        "inputs": essential(look_at(settings.reads())),
        "batch": settings.loop.batch,
        "seed": settings.seed,
        # The last digits of a sum depend on these.
        "machine": [
            str(devices.device), torch.get_num_threads(), platform.machine(),
            torch.backends.cpu.get_cpu_capability(), *map(_version, LIBRARIES), _sources(),
        ],
    }  # fmt: skip
    return folder / f"{digest(known)[:32]}.base"


@cache
def _sources() -> str:
    """The code of this package as it was at the first call."""
    whole = hashlib.sha256()
    for file in sorted(Path(__file__).parents[2].rglob("*.py")):
        whole.update(file.read_bytes())
    return whole.hexdigest()


def _version(distribution: str) -> str:
    with suppress(PackageNotFoundError):
        return version(distribution)
    return ""


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values."""
    whole = hashlib.sha256()
    for name, value in sorted(state.items()):
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        plain = value.detach().cpu().contiguous().reshape(-1)
        whole.update(plain.view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()
