"""A base for streams without pretrained weights: the whole ViT learns what comes first."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from risegrad.common.files import replacing
from risegrad.common.seal import digest
from risegrad.common.seeds import generator_for, seed_for
from riselab.common.folders import cache_folder
from riselab.common.inputs import essential, look_at
from riselab.common.settings import as_plain
from riselab.continual.batches import Loader, epoch_batches
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


def taught_base(
    vit: nn.Module, tasks: Sequence[Task[ImageSplit]], settings: VisionRun, devices: Devices
) -> Head:
    """``train_base``, or what it gave the last time."""
    file = _file(vit, len(tasks), settings, devices)
    if file is not None and file.exists():
        head = new_head(vit, tasks, settings.seed)
        if _load(file, _both(vit, head)):
            nn.ModuleList([vit, head]).to(devices.device).requires_grad_(False).eval()
            return head
    head = train_base(vit, tasks, settings.model, settings.loop, devices, settings.seed)
    if file is not None:
        _keep(file, _both(vit, head))
    return head


def _both(vit: nn.Module, head: Head) -> nn.ModuleDict:
    return nn.ModuleDict({"base": vit, "head": head})


def _file(vit: nn.Module, tasks: int, settings: VisionRun, devices: Devices) -> Path | None:
    """Where the base lies or would lie; None where none is kept."""
    folder = cache_folder("bases")
    # A plugin's code may change without our seeing it.
    foreign = isinstance(settings.stream, OwnImageStream) or (
        settings.model.own and settings.model.name != MLP
    )
    if folder is None or foreign or importlib.util.find_spec("safetensors") is None:
        return None
    known = {
        "start": fingerprint(vit.state_dict()),
        "model": as_plain(settings.model),
        "stream": as_plain(settings.stream),
        "tasks": tasks,
        "inputs": essential(look_at(settings.reads())),
        "batch": settings.loop.batch,
        "seed": settings.seed,
        "device": str(devices.device),
        "arithmetic": _arithmetic(),
        "sources": _sources(),
    }
    return folder / f"{digest(known)[:32]}.safetensors"


LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn", "torchvision", "timm", "pillow")
"""What images, their views and the network's code come from."""


def _arithmetic() -> list[Any]:
    """What the last digits of a sum depend on."""
    capability = torch.backends.cpu.get_cpu_capability()
    versions = [_version(name) for name in LIBRARIES]
    return [*versions, torch.get_num_threads(), platform.machine(), capability]


def _version(distribution: str) -> str:
    with suppress(PackageNotFoundError):
        return version(distribution)
    return ""


@cache
def _sources() -> str:
    """Of this package, as it was at the first call."""
    whole = hashlib.sha256()
    for file in sorted(Path(__file__).parents[2].rglob("*.py")):
        whole.update(file.read_bytes())
    return whole.hexdigest()


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values."""
    whole = hashlib.sha256()
    for name, value in sorted(state.items()):
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        plain = value.detach().cpu().contiguous().reshape(-1)
        whole.update(plain.view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def _keep(file: Path, both: nn.Module) -> None:
    """A cache that cannot be written costs time, nothing else."""
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().clone() for name, value in both.state_dict().items()}
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            save_file(state, temporary, {"sha256": fingerprint(state)})
        kept = sorted(file.parent.glob("[!.]*.safetensors"), key=lambda one: one.stat().st_mtime)
        for old in kept[:-MOST]:
            old.unlink(missing_ok=True)


def _load(file: Path, both: nn.Module) -> bool:
    """Whether the file was whole and is loaded; otherwise nothing has changed."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as stream:
            said = (stream.metadata() or {}).get("sha256")
            state = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        if fingerprint(state) != said:
            raise ValueError("it does not match its checksum")
        shapes = {name: value.shape for name, value in both.state_dict().items()}
        if {name: value.shape for name, value in state.items()} != shapes:
            raise ValueError("it is of another network")
    except (OSError, SafetensorError, ValueError) as error:
        warnings.warn(f"{file} is damaged ({error}): the base is trained again", stacklevel=2)
        return False
    both.load_state_dict(state)
    return True
