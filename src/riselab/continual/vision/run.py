"""Runs in vision: their settings and the parts that these describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from riselab.common.inputs import Reading
from riselab.continual import metrics, preflight
from riselab.continual.devices import Devices
from riselab.continual.learning import Run
from riselab.continual.preflight import Known, complaint, missing_extras, off_hub, once
from riselab.continual.rules import Rule
from riselab.continual.runs import HostDomain, Matrix, read_run
from riselab.continual.vision.base import taught_base, train_base
from riselab.continual.vision.hosts import HOSTS
from riselab.continual.vision.hosts.base import VisionHost
from riselab.continual.vision.kit import Kit
from riselab.continual.vision.models import (
    DEPTH,
    WIDTH,
    ViTSettings,
    hub_repository,
    load_backbone,
    no_weights,
    weights_of,
    weights_wanted,
)
from riselab.continual.vision.streams import (
    ImageStreamSettings,
    build_stream,
    read_stream,
)
from riselab.continual.vision.streams.build import images_of, open_source


@dataclass(frozen=True)
class VisionRun(Run):
    """A run in vision."""

    stream: ImageStreamSettings
    model: ViTSettings = field(default_factory=ViTSettings)
    domain: Literal["vision"] = "vision"

    def reads(self) -> dict[str, Reading]:
        """The images and the weights, by the settings that name them."""
        images, weights = images_of(self.stream), weights_of(self.model)
        return ({"stream.data": images} if images else {}) | weights


class VisionDomain(HostDomain[VisionRun]):
    """Images, and models that see them."""

    def read(self, plain: Mapping[str, Any]) -> VisionRun:
        """``stream.name`` may name a stream whose settings are changed."""
        stream = read_stream(plain.get("stream", {}))
        settings = read_run(VisionRun, {**plain, "stream": stream}, HOSTS)
        _check_fit(settings, HOSTS[settings.host.name])
        return settings

    def missing(self, settings: VisionRun, known: Known) -> list[str]:
        return once(known, _data, settings.stream) + once(known, _weights, settings.model)

    def checkpoint(self, settings: VisionRun) -> int:
        whole = HOSTS[settings.host.name].shares_classes
        return _whole(settings) if whole else _adapters(settings.model)

    def fetch(self, settings: VisionRun) -> None:
        """The images, which stay where a run looks for them."""
        if settings.stream.source == "cifar100" and settings.stream.download:
            open_source(settings.stream)

    def estimate(self, settings: VisionRun) -> dict[str, Any]:
        """Images through the ViT, counted forward and backward; scoring included."""
        stream, host = build_stream(settings.stream), HOSTS[settings.host.name]
        sizes = [len(task.train) for task in stream]
        tests = [len(getattr(task, settings.loop.score_on)) for task in stream]
        cached = host.cached and settings.loop.cache == "auto"
        rule = Rule(settings.rule.name or host.default_rule, settings.rule.q)
        passed = 0 if cached else trained(settings, sizes)
        forward, backward = (passed * n for n in rule.passes)
        base = sizes[0] * settings.model.base_epochs
        return {
            "tasks": len(stream),
            "train images": sum(sizes),
            "test images": sum(tests),
            "forward": base + forward + host.feature_passes(sizes, tests),
            "backward": base + backward,
        }

    def seconds(self, settings: VisionRun) -> float:
        stream = build_stream(settings.stream)
        sizes = [len(task.train) for task in stream]
        tests = [len(getattr(task, settings.loop.score_on)) for task in stream]
        base, step, feature = _paces(_small(settings))
        passes = HOSTS[settings.host.name].feature_passes(sizes, tests)
        first = sizes[0] * settings.model.base_epochs
        return first * base + trained(settings, sizes) * step + passes * feature

    def host(self, settings: VisionRun, devices: Devices) -> VisionHost:
        stream = build_stream(settings.stream)
        vit = load_backbone(settings.model, settings.stream.image_size, settings.seed)
        base_head = None
        if settings.model.base_epochs:
            # Of new classes a base knows the first task's; of the same in other images, all known.
            shared = stream.known if settings.stream.kind == "domains" else 1
            base_head = taught_base(vit, stream.tasks[: shared or 1], settings, devices)
        kit = Kit(
            stream=stream,
            vit=vit,
            vit_settings=settings.model,
            rule=settings.rule,
            head=settings.head,
            adapter=settings.adapter,
            loop=settings.loop,
            devices=devices,
            seed=settings.seed,
            base_head=base_head,
        )
        return HOSTS[settings.host.name](kit, settings.host)

    def summarize(self, settings: VisionRun, matrix: Matrix, union: list[float]) -> metrics.Summary:
        if settings.stream.kind == "domains":
            return metrics.summary_domains(matrix)
        return metrics.summary_vision(matrix, union, settings.stream.known)


DOMAIN = VisionDomain()


def _check_fit(settings: VisionRun, host: type[VisionHost]) -> None:
    """Refuse a host that the model or the stream has nothing for."""
    if host.has_adapters and settings.model.own:
        raise ValueError(
            f"host {host.name!r} puts adapters beside the blocks of a ViT, and model.name "
            f"{settings.model.name!r} has no blocks"
        )
    if settings.stream.known and host.trains == "first":
        raise ValueError(
            f"stream.known must be 0 with host {host.name!r}, which trains in the first session "
            f"only; got {settings.stream.known}"
        )
    kind = settings.stream.kind
    if (kind == "domains") == host.shares_classes:
        return
    if kind == "domains":
        fitting = ", ".join(name for name, other in HOSTS.items() if other.shares_classes)
        raise ValueError(
            f"host {host.name!r} adds new classes in every session, and with stream.kind 'domains' "
            f"all sessions have the same: host.name must be one of {fitting}"
        )
    raise ValueError(
        f"host {host.name!r} has one head for the classes that all sessions share: stream.kind "
        f"must be 'domains', got {kind!r}"
    )


def _small(settings: VisionRun) -> VisionRun:
    """The same with about a batch of images, and new weights, which take as long as any."""
    classes = settings.stream.base or settings.stream.increment
    few = max(settings.loop.batch // classes, 1)
    stream = replace(settings.stream, train_per_class=few, test_per_class=few, validation=0.0)
    model = replace(settings.model, pretrained=False, weights="", base_epochs=0)
    loop = replace(settings.loop, score_on="test")
    return replace(settings, stream=stream, model=model, loop=loop, seed=0)


@cache
def _paces(settings: VisionRun) -> tuple[float, float, float]:
    """Seconds of an image in the training of a base, in a step, and on its way to features."""
    devices = settings.devices
    host = DOMAIN.host(settings, devices)
    kit = host.kit
    step = preflight.step(host, settings, devices)
    feature = preflight.per_example(
        lambda: kit.features_of(0, "test"), len(kit.stream[0].test), devices
    )
    once = replace(settings.model, base_epochs=1)
    base = preflight.per_example(
        lambda: train_base(kit.vit, kit.stream.tasks[:1], once, settings.loop, devices, 0),
        len(kit.stream[0].train),
        devices,
    )
    return base, step, feature


def trained(settings: VisionRun, sizes: Sequence[int]) -> int:
    """Images of all training steps: every one once per epoch, as far as the host trains."""
    host = HOSTS[settings.host.name]
    learned = sizes[settings.stream.known :]
    images = {"every": sum(learned), "first": sizes[0], "never": 0}[host.trains]
    return images * (settings.head.epochs if host.cached else settings.adapter.epochs)


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
        case "sessions":
            return complaint(lambda: build_stream(stream))
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
    if model.own:
        return []
    if lacking := missing_extras(["timm"], "vision", "ViTs"):
        return lacking
    path = Path(model.weights).expanduser()
    if model.weights:
        return [] if path.is_file() else [no_weights(path)]
    if not model.pretrained:
        return []
    why = off_hub(hub_repository(model.name)) if hub_repository(model.name) else "not known to timm"
    return [f"model.name {model.name!r} is {why}; {weights_wanted(model)}"] if why else []


def _whole(settings: VisionRun) -> int:
    """About: all weights, in blocks of four squares for attention and eight for what follows."""
    model, pixels = settings.model, settings.stream.image_size**2
    if model.own:  # of a plugin's model, a guess
        width, depth = model.width or WIDTH, model.depth or DEPTH
        return width * (pixels + (depth - 1) * width)
    width, depth = _shape(model)
    return 12 * width**2 * depth


def _shape(model: ViTSettings) -> tuple[int, int]:
    width, depth = next((s for word, s in SHAPES.items() if word in model.name), SHAPES["base"])
    return model.width or width, model.depth or depth


def _adapters(model: ViTSettings) -> int:
    """About: the adapters of one session."""
    width, depth = _shape(model)
    return 2 * width * model.adapter_width * depth
