"""Taught bases, kept in the user's cache: runs of one seed share theirs, so it is taught once.

A base is known by everything that it depends on, down to the machine's arithmetic and our own
sources: what is loaded is bit for bit what would be taught.
"""

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

from risegrad.common.atomic_files import cache_folder, replacing
from risegrad.common.record_seal import digest
from risegrad.common.run_inputs import essential, look_at
from risegrad.common.settings import as_plain
from risegrad.continual.devices import Devices
from risegrad.continual.stream import Task
from risegrad.continual.vision.classifier_heads import Head
from risegrad.continual.vision.first_task_base import new_head, train_base
from risegrad.continual.vision.small_network import MLP
from risegrad.continual.vision.streams import ImageSplit, OwnImageStream

if TYPE_CHECKING:
    from risegrad.continual.vision.vision_run import VisionRun

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
            raise ValueError("its content is not what was written")
        shapes = {name: value.shape for name, value in both.state_dict().items()}
        if {name: value.shape for name, value in state.items()} != shapes:
            raise ValueError("it is of another network")
    except (OSError, SafetensorError, ValueError) as error:
        warnings.warn(f"{file} is broken ({error}): the base is taught again", stacklevel=2)
        return False
    both.load_state_dict(state)
    return True
