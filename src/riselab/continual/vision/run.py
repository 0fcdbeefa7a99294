"""Runs in vision: their settings and the parts that these describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from riselab.common.inputs import Reading
from riselab.continual import metrics
from riselab.continual.devices import Devices
from riselab.continual.learning import Run
from riselab.continual.preflight import complaint, missing_extras, off_hub
from riselab.continual.runs import HostDomain, Matrix, Work, read_run
from riselab.continual.vision.base import taught_base
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
from riselab.continual.vision.streams import ImageStreamSettings, build_stream, read_stream
from riselab.continual.vision.streams.build import images_of, open_source

SHAPES = {"tiny": (192, 12), "small": (384, 12), "base": (768, 12), "large": (1024, 24)}
SHAPES |= {"huge": (1280, 32), "giant": (1536, 40)}


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

    examples = "images"
    hosts = HOSTS

    def read(self, plain: Mapping[str, Any]) -> VisionRun:
        """``stream.name`` may name a stream whose settings are changed."""
        stream = read_stream(plain.get("stream", {}))
        settings = read_run(VisionRun, {**plain, "stream": stream}, HOSTS)
        _check_fit(settings, HOSTS[settings.host.name])
        return settings

    def no_data(self, stream: ImageStreamSettings) -> list[str]:
        """Files are looked for; only CIFAR-100 is read, whose parts have checksums."""
        path = Path(stream.data).expanduser()
        match stream.source:
            case "cifar100" if stream.download:
                return []
            case "npz" if path.is_file():
                return []
            case "hub":
                lacking = missing_extras(["datasets"], "vision", "stream.source=hub")
                why = "" if lacking or path.exists() else off_hub(stream.data, "dataset")
                gone = f"the dataset {stream.data!r} is no file or folder here and {why}: give "
                return lacking or ([f"{gone}files with --set stream.data=PATH"] if why else [])
            case "sessions":
                return complaint(lambda: build_stream(stream))
            case _:
                return complaint(lambda: open_source(stream))

    def no_model(self, model: ViTSettings) -> list[str]:
        """Weights are looked for, not read."""
        if model.own:
            return []
        if lacking := missing_extras(["timm"], "vision", "ViTs"):
            return lacking
        path = Path(model.weights).expanduser()
        if model.weights or not model.pretrained:
            return [no_weights(path)] if model.weights and not path.is_file() else []
        place = hub_repository(model.name)
        why = off_hub(place) if place else "not known to timm"
        wanted = f"model.name {model.name!r} is {why}; {weights_wanted(model.name)}"
        return [wanted] if why else []

    def checkpoint(self, settings: VisionRun) -> int:
        """The whole network, in blocks of four squares for attention and eight for what follows; or
        the adapters of one session."""
        model, whole = settings.model, HOSTS[settings.host.name].shares_classes
        if model.own:  # of a plugin's model, a guess
            width, depth = model.width or WIDTH, model.depth or DEPTH
            return width * (settings.stream.image_size**2 + (depth - 1) * width)
        known = (shape for word, shape in SHAPES.items() if word in model.name)
        width, depth = next(known, SHAPES["base"])
        width, depth = model.width or width, model.depth or depth
        return (12 * width if whole else 2 * model.adapter_width) * width * depth

    def fetch(self, settings: VisionRun) -> None:
        """The images, which stay where a run looks for them."""
        if settings.stream.source == "cifar100" and settings.stream.download:
            open_source(settings.stream)

    def work(self, settings: VisionRun) -> Work:
        stream, host = build_stream(settings.stream), HOSTS[settings.host.name]
        sizes = [len(task.train) for task in stream]
        tests = [len(getattr(task, settings.loop.score_on)) for task in stream]
        learned = {"every": sum(sizes[stream.known :]), "first": sizes[0], "never": 0}[host.trains]
        cached = host.cached and settings.loop.cache == "auto"
        return Work(
            train=sizes,
            tests=tests,
            steps=learned * (settings.head.epochs if host.cached else settings.adapter.epochs),
            cached=cached,
            scored=host.feature_passes(sizes, tests),
            base=sizes[0] * settings.model.base_epochs,
        )

    def small(self, settings: VisionRun) -> VisionRun:
        classes = settings.stream.base or settings.stream.increment
        few = max(settings.loop.batch // classes, 1)
        stream = replace(settings.stream, train_per_class=few, test_per_class=few, validation=0.0)
        # New weights take as long as any.
        model = replace(settings.model, pretrained=False, weights="", base_epochs=0)
        return replace(settings, stream=stream, model=model)

    def score(self, host: VisionHost) -> int:
        return len(host.kit.features_of(0, "test")[1])

    def host(self, settings: VisionRun, devices: Devices) -> VisionHost:
        stream = build_stream(settings.stream)
        vit = load_backbone(settings.model, settings.stream.image_size, settings.seed)
        base_head = None
        if settings.model.base_epochs:
            # Of new classes a base knows the first task's; of the same in other images, all known.
            shared = stream.known if settings.stream.kind == "domains" else 1
            base_head = taught_base(vit, stream.tasks[: shared or 1], settings, devices)
        kit = Kit(settings, stream, devices, vit, base_head)
        return HOSTS[settings.host.name](kit, settings.host)

    def summarize(self, settings: VisionRun, matrix: Matrix, union: list[float]) -> metrics.Summary:
        if settings.stream.kind == "domains":
            return metrics.summary_domains(matrix)
        return metrics.summary_vision(matrix, union, settings.stream.known)


DOMAIN = VisionDomain()


def _check_fit(settings: VisionRun, host: type[VisionHost]) -> None:
    """Refuse a host that the model or the stream has nothing for."""
    kind, known = settings.stream.kind, settings.stream.known
    if host.has_adapters and settings.model.own:
        raise ValueError(
            f"host {host.name!r} puts adapters beside the blocks of a ViT, and model.name "
            f"{settings.model.name!r} has no blocks"
        )
    if known and host.trains == "first":
        raise ValueError(
            f"stream.known must be 0 with host {host.name!r}, which trains in the first session "
            f"only; got {known}"
        )
    if kind == "domains" and not host.shares_classes:
        fitting = ", ".join(name for name, other in HOSTS.items() if other.shares_classes)
        raise ValueError(
            f"host {host.name!r} adds new classes in every session, and with stream.kind 'domains' "
            f"all sessions have the same: host.name must be one of {fitting}"
        )
    if kind != "domains" and host.shares_classes:
        raise ValueError(
            f"host {host.name!r} has one head for the classes that all sessions share: stream.kind "
            f"must be 'domains', got {kind!r}"
        )
