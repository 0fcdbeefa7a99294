"""How long a run in vision would take here: a few steps on a few images, and how many it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from risegrad.continual import pace
from risegrad.continual.devices import Devices
from risegrad.continual.hosts import HOSTS
from risegrad.continual.hosts.vision import VisionHost
from risegrad.continual.streams import build_stream
from risegrad.continual.vision.base import train_base
from risegrad.continual.vision.work import trained

if TYPE_CHECKING:
    from risegrad.continual.vision.run import VisionRun

MakeHost = Callable[["VisionRun", Devices], VisionHost]


def seconds(settings: VisionRun, make_host: MakeHost) -> float:
    stream = build_stream(settings.stream)
    sizes = [len(task.train) for task in stream]
    tests = [len(getattr(task, settings.loop.score_on)) for task in stream]
    base, step, feature = _paces(_small(settings), make_host)
    passes = HOSTS[settings.host.name].feature_passes(sizes, tests)
    first = sizes[0] * settings.model.base_epochs
    return first * base + trained(settings, sizes) * step + passes * feature


def _small(settings: VisionRun) -> VisionRun:
    """The same with about a batch of images, and new weights, which take as long as any."""
    classes = settings.stream.base or settings.stream.increment
    few = max(settings.loop.batch // classes, 1)
    stream = replace(settings.stream, train_per_class=few, test_per_class=few, validation=0.0)
    model = replace(settings.model, pretrained=False, weights="", base_epochs=0)
    loop = replace(settings.loop, score_on="test")
    return replace(settings, stream=stream, model=model, loop=loop, seed=0)


@cache
def _paces(settings: VisionRun, make_host: MakeHost) -> tuple[float, float, float]:
    """Seconds of an image in the training of a base, in a step, and on its way to features."""
    devices = Devices(settings.loop.precision, settings.loop.device)
    host = make_host(settings, devices)
    kit = host.kit
    step = pace.step(host, settings, devices)
    feature = pace.per_example(lambda: kit.features_of(0, "test"), len(kit.stream[0].test), devices)
    once = replace(settings.model, base_epochs=1)
    base = pace.per_example(
        lambda: train_base(kit.vit, kit.stream[0], once, settings.loop, devices, 0),
        len(kit.stream[0].train),
        devices,
    )
    return base, step, feature
