"""What a run in vision needs: packages, images, weights, room."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from risegrad.continual.needs import (
    Known,
    checkpoint_bytes,
    complaint,
    missing_extras,
    off_hub,
    once,
)
from risegrad.continual.streams import ImageStreamSettings
from risegrad.continual.streams.build import open_source
from risegrad.continual.vision.backbone import (
    ViTSettings,
    hub_repository,
    no_weights,
    weights_wanted,
)

if TYPE_CHECKING:
    from risegrad.continual.vision.run import VisionRun

READERS = {
    "cifar100": ("torchvision", "vision"),
    "folder": ("PIL", "vision"),
    "domainnet": ("PIL", "vision"),
    "hub": ("datasets", "vision"),
    "digits": ("sklearn", "lab"),
}
CIFAR100 = "cifar-100-python"
CIFAR100_URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
SHAPES = {"tiny": (192, 12), "small": (384, 12), "base": (768, 12), "large": (1024, 24)}
SHAPES |= {"huge": (1280, 32), "giant": (1536, 40)}


def needs(settings: VisionRun, known: Known) -> dict[str, Any]:
    """``missing``: a sentence each, with the way to get it; ``bytes`` of its checkpoints."""
    missing = once(known, _data, settings.stream) + once(known, _weights, settings.model)
    return {"missing": missing, "bytes": checkpoint_bytes(_trained(settings.model))}


def _data(stream: ImageStreamSettings) -> list[str]:
    """Looked for, not read: whole sets of images would take a while."""
    if stream.source in READERS:
        module, extra = READERS[stream.source]
        if lacking := missing_extras([module], extra, f"stream.source={stream.source}"):
            return lacking
    path = Path(stream.data).expanduser()
    match stream.source:
        case "cifar100":
            return _cifar100(path, stream.download)
        case "npz":
            there = path.is_file()
            return [] if there else complaint(lambda: open_source(stream))
        case "hub":
            return [] if path.exists() else _on_hub(stream.data)
        case "digits":
            return []
        case _:
            return complaint(lambda: open_source(stream))


def _cifar100(root: Path, download: bool) -> list[str]:
    place = root / CIFAR100
    if download or all((place / name).is_file() for name in ("train", "test", "meta")):
        return []
    return [
        f"CIFAR-100 is not in {place.absolute()}: --set stream.download=true gets it, or unpack "
        f"{CIFAR100_URL} in {root.absolute()}, or give the folder that has {CIFAR100} as "
        "--set stream.data=FOLDER"
    ]


def _on_hub(name: str) -> list[str]:
    if why := off_hub(name, "dataset"):
        return [
            f"the dataset {name!r} is no file or folder here and {why}: give files with "
            "--set stream.data=PATH"
        ]
    return []


def _weights(model: ViTSettings) -> list[str]:
    if lacking := missing_extras(["timm"], "vision", "ViTs"):
        return lacking
    path = Path(model.weights).expanduser()
    if model.weights:
        return [] if path.is_file() else [no_weights(path)]
    if not model.pretrained:
        return []
    why = off_hub(hub_repository(model.name)) if hub_repository(model.name) else "not known to timm"
    return [f"model.name {model.name!r} is {why}; {weights_wanted(model)}"] if why else []


def _trained(model: ViTSettings) -> int:
    """About: the adapters of one session."""
    width, depth = next((s for word, s in SHAPES.items() if word in model.name), SHAPES["base"])
    return 2 * (model.width or width) * model.adapter_width * (model.depth or depth)
