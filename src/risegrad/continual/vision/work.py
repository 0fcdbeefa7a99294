"""How much work a run is, before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from risegrad.continual.hosts import HOSTS
from risegrad.continual.rules import Rule
from risegrad.continual.stream import Stream
from risegrad.continual.streams import ImageSplit

if TYPE_CHECKING:
    from risegrad.continual.vision.run import VisionRun


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
    images = {"every": sum(sizes), "first": sizes[0], "never": 0}[host.trains]
    return images * (settings.head.epochs if host.cached else settings.adapter.epochs)


def _passes(rule: Rule) -> tuple[int, int]:
    """Forward and backward passes of one image in one step."""
    return (1, 1) if rule.exact else (2 * rule.q, 0)
