"""How much work a run in vision is, and how long it would take here: a few steps, timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from risegrad.continual import run_pace
from risegrad.continual.devices import Devices
from risegrad.continual.stream import Stream
from risegrad.continual.update_rules import Rule
from risegrad.continual.vision.first_task_base import train_base
from risegrad.continual.vision.hosts import HOSTS
from risegrad.continual.vision.hosts.vision_host import VisionHost
from risegrad.continual.vision.streams import ImageSplit, build_stream

if TYPE_CHECKING:
    from risegrad.continual.vision.vision_run import VisionRun

MakeHost = Callable[["VisionRun", Devices], VisionHost]


def seconds(settings: VisionRun, make_host: MakeHost) -> float:
    """About how many seconds the whole run would take here."""
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
    step = run_pace.step(host, settings, devices)
    feature = run_pace.per_example(
        lambda: kit.features_of(0, "test"), len(kit.stream[0].test), devices
    )
    once = replace(settings.model, base_epochs=1)
    base = run_pace.per_example(
        lambda: train_base(kit.vit, kit.stream.tasks[:1], once, settings.loop, devices, 0),
        len(kit.stream[0].train),
        devices,
    )
    return base, step, feature


def work(settings: VisionRun, stream: Stream[ImageSplit]) -> dict[str, Any]:
    """Images through the ViT, counted forward and backward; scoring included."""
    host = HOSTS[settings.host.name]
    sizes = [len(task.train) for task in stream]
    tests = [len(getattr(task, settings.loop.score_on)) for task in stream]
    cached = host.cached and settings.loop.cache == "auto"
    per_epoch = _passes(Rule(settings.rule.name or host.default_rule, settings.rule.q))
    passed = 0 if cached else trained(settings, sizes)
    forward, backward = (passed * n for n in per_epoch)
    base = sizes[0] * settings.model.base_epochs
    return {
        "tasks": len(stream),
        "train images": sum(sizes),
        "test images": sum(tests),
        "forward": base + forward + host.feature_passes(sizes, tests),
        "backward": base + backward,
    }


def trained(settings: VisionRun, sizes: Sequence[int]) -> int:
    """Images of all training steps: every one once per epoch, as far as the host trains."""
    host = HOSTS[settings.host.name]
    learned = sizes[settings.stream.known :]
    images = {"every": sum(learned), "first": sizes[0], "never": 0}[host.trains]
    return images * (settings.head.epochs if host.cached else settings.adapter.epochs)


def _passes(rule: Rule) -> tuple[int, int]:
    """Forward and backward passes of one image in one step."""
    return (1, 1) if rule.exact else (2 * rule.q, 0)
