"""One run in vision: settings, the parts they describe, and what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from risegrad.checks import check_choice
from risegrad.continual import metrics
from risegrad.continual.budget import Budget
from risegrad.continual.config import read_run
from risegrad.continual.devices import Devices
from risegrad.continual.hosts import HOSTS
from risegrad.continual.hosts.vision import VisionHost
from risegrad.continual.learn import learn_stream
from risegrad.continual.progress import Report
from risegrad.continual.results import result
from risegrad.continual.rules import Rule
from risegrad.continual.streams import NAMED, ImageStreamSettings, build_stream
from risegrad.continual.streams.build import images_of
from risegrad.continual.train import Loop
from risegrad.continual.vision import pace
from risegrad.continual.vision.backbone import ViTSettings, load_backbone, weights_of
from risegrad.continual.vision.base import train_base
from risegrad.continual.vision.kit import Kit
from risegrad.continual.vision.needs import needs as needs
from risegrad.continual.vision.work import work
from risegrad.inputs import Reading
from risegrad.settings import as_plain


@dataclass(frozen=True)
class VisionRun:
    """Everything that a run in vision depends on."""

    stream: ImageStreamSettings
    host: Any
    """The settings of the host, with its ``name``."""
    model: ViTSettings = field(default_factory=ViTSettings)
    rule: Rule = field(default_factory=Rule)
    head: Budget = field(default_factory=Budget)
    adapter: Budget = field(default_factory=Budget)
    loop: Loop = field(default_factory=Loop)
    additions: tuple[Any, ...] = ()
    seed: int = 0
    """Of initialization, batches, augmentation and draws; the class order has its own."""
    domain: Literal["vision"] = "vision"

    def reads(self) -> dict[str, Reading]:
        """The images and the weights, by the settings that name them."""
        images, weights = images_of(self.stream), weights_of(self.model)
        return ({"stream.data": images} if images else {}) | weights


def read_config(plain: Mapping[str, Any]) -> VisionRun:
    """Plain tables into settings; ``stream.name`` may name a stream whose settings are changed."""
    stream = dict(plain.get("stream", {}))
    name = str(stream.get("name", "custom"))
    if name in NAMED:
        stream = as_plain(NAMED[name]) | stream
    elif "source" not in stream:
        check_choice("stream.name", name, NAMED)
    return read_run(VisionRun, {**plain, "stream": stream}, HOSTS)


def estimate(settings: VisionRun) -> dict[str, Any]:
    """Images of the stream, and how many pass forward and backward while learning."""
    return work(settings, build_stream(settings.stream))


def seconds(settings: VisionRun) -> float:
    """How long a run would take here, from a few timed steps."""
    return pace.seconds(settings, make_host)


def perform(settings: VisionRun, folder: Path, report: Report) -> dict[str, Any]:
    """Learn the stream, going on from what lies in ``folder``."""
    devices = Devices(settings.loop.precision, settings.loop.device)
    host = make_host(settings, devices)
    stream = host.kit.stream
    history = learn_stream(host, len(stream), settings, devices, folder, report)
    return result(stream, history, host.main_score, metrics.summary_vision)


def make_host(settings: VisionRun, devices: Devices) -> VisionHost:
    stream = build_stream(settings.stream)
    vit = load_backbone(settings.model, settings.stream.image_size, settings.seed)
    if settings.model.base_epochs:
        train_base(vit, stream[0], settings.model, settings.loop, devices, settings.seed)
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
    )
    return HOSTS[settings.host.name](kit, settings.host)
