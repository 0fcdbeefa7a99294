"""What every vision host works with: the stream, the frozen ViT, budgets, rule, devices, seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from risegrad.common.seeds import generator_for, seed_for
from riselab.continual.batches import Loader
from riselab.continual.devices import Devices
from riselab.continual.host import Ref, Stream, TrainingBudget
from riselab.continual.rules import Rule
from riselab.continual.training import Loop
from riselab.continual.vision.models import (
    Head,
    ViTSettings,
    class_means,
    cosine,
    feature_width,
    features,
    make_adapters,
)
from riselab.continual.vision.streams import ImageSplit


@dataclass(frozen=True)
class VisionBatch:
    """Images ``[n, 3, s, s]`` or features ``[n, width]``, with labels by position in the stream."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, target: torch.device) -> VisionBatch:
        """The same batch on another device."""
        return VisionBatch(
            self.inputs.to(target, non_blocking=True), self.labels.to(target, non_blocking=True)
        )

    def pin_memory(self) -> VisionBatch:
        """The same batch in pinned memory, which copies to a GPU faster."""
        return VisionBatch(self.inputs.pin_memory(), self.labels.pin_memory())


@dataclass(frozen=True)
class AugmentedImages:
    """The training view of images; each is augmented by (seed, task, epoch, index) alone."""

    at_hand: ClassVar[bool] = False
    stream: Stream[ImageSplit]
    seed: int

    def fetch(self, refs: Sequence[Ref], epoch: int) -> VisionBatch:
        """The named images in a random view that depends on seed and epoch."""
        seed = seed_for(self.seed, "augment", epoch)
        return _by_task(self.stream, "train", refs, seed)


@dataclass(frozen=True)
class CachedFeatures:
    """Features of frozen parts, per task, on the device; the same in every epoch."""

    at_hand: ClassVar[bool] = True
    features: dict[int, Tensor]
    labels: dict[int, Tensor]

    def fetch(self, refs: Sequence[Ref], epoch: int) -> VisionBatch:
        """The features of the named images, the same in every epoch."""
        inputs = [self.features[task][index] for task, index in refs]
        labels = [self.labels[task][index] for task, index in refs]
        if not refs:
            return VisionBatch(torch.empty(0), torch.empty(0, dtype=torch.int64))
        return VisionBatch(torch.stack(inputs), torch.stack(labels))


@dataclass(frozen=True)
class PlainImages:
    """The test view of images of one split (``train``, ``validation`` or ``test``)."""

    at_hand: ClassVar[bool] = False
    stream: Stream[ImageSplit]
    split: str

    def fetch(self, refs: Sequence[Ref], epoch: int) -> VisionBatch:
        """The named images in the fixed view of testing."""
        return _by_task(self.stream, self.split, refs, None)


def _by_task(
    stream: Stream[ImageSplit], split: str, refs: Sequence[Ref], seed: int | None
) -> VisionBatch:
    """Images of several tasks in the order of ``refs``; ``seed`` None gives the test view."""
    images: list[Tensor] = []
    labels: list[Tensor] = []
    # Replayed examples stand after the task's own, so neighbours of one task go in one call.
    for task, group in itertools.groupby(refs, key=lambda ref: ref[0]):
        data: ImageSplit = getattr(stream[task], split)
        indices = [index for _, index in group]
        seeds = 0 if seed is None else seed_for(seed, task)
        images.append(data.images(indices, train=seed is not None, seeds=seeds))
        labels.append(data.labels[indices])
    if not refs:
        return VisionBatch(torch.empty(0), torch.empty(0, dtype=torch.int64))
    return VisionBatch(torch.cat(images), torch.cat(labels))


@dataclass
class Kit:
    """The parts that hosts share. ``extract(images, adapters)`` gives features."""

    stream: Stream[ImageSplit]
    vit: nn.Module
    vit_settings: ViTSettings
    rule: Rule
    head: TrainingBudget
    adapter: TrainingBudget
    loop: Loop
    devices: Devices
    seed: int
    base_head: Head | None = None
    """The head with which the first task was taught before the stream, where it was."""
    extract: Callable[[Tensor, nn.ModuleList | None], Tensor] = field(init=False)
    _kept: dict[tuple[str, int, str], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False
    )

    _loaders: dict[str, Loader[VisionBatch]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.vit.to(self.devices.device)
        compute = torch.compile(features) if self.loop.compile else features
        self.extract = lambda images, adapters: compute(self.vit, images, adapters)

    @property
    def width(self) -> int:
        """How many numbers a feature has."""
        return feature_width(self.vit)

    def first_class(self, task: int) -> int:
        """The label of a task's first class: labels are positions in the order of the stream."""
        return sum(len(earlier.classes) for earlier in self.stream.tasks[:task])

    def named_rule(self, default: str) -> Rule:
        """The rule of the settings, or the host's own where they name none."""
        return self.rule if self.rule.name else replace(self.rule, name=default)

    def new_adapters(self, task: int) -> nn.ModuleList:
        """New adapters for every block of the ViT; each task has its own random start."""
        depth = len(self.vit.blocks)  # type: ignore[arg-type]
        generator = generator_for(self.seed, "adapters", task)
        adapters = make_adapters(self.vit_settings, self.width, depth, generator)
        return adapters.to(self.devices.device)

    def features_of(
        self, task: int, split: str, adapters: nn.ModuleList | None = None, *, share: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Features and labels of a split in the test view, computed now.

        With ``share``, several processes compute a part each, and get only that.
        """
        indices = range(len(getattr(self.stream[task], split)))
        mine = self.devices.share(indices) if share else indices
        size = max(self.loop.batch, 64)
        refs = [
            [(task, i) for i in mine[start : start + size]] for start in range(0, len(mine), size)
        ]
        if adapters is not None:
            adapters.eval()
        found, labels = [torch.empty(0, self.width)], [torch.empty(0, dtype=torch.int64)]
        with torch.no_grad():
            for batch in self._loader(split).batches(refs, 0):
                batch = batch.to(self.devices.device)
                with self.devices.autocast():
                    found.append(self.extract(batch.inputs, adapters).float().cpu())
                labels.append(batch.labels.cpu())
        device = self.devices.device
        return torch.cat(found).to(device), torch.cat(labels).to(device)

    def _loader(self, split: str) -> Loader[VisionBatch]:
        """One for the whole run: its processes are there at the next scoring."""
        if split not in self._loaders:
            items = PlainImages(self.stream, split)
            self._loaders[split] = Loader(items, self.loop.workers)
        return self._loaders[split]

    def kept_features(
        self,
        key: str,
        task: int,
        split: str,
        adapters: nn.ModuleList | None = None,
        *,
        share: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """As ``features_of``, but computed once: ``key`` names a part that no longer trains."""
        if self.loop.cache == "never":
            return self.features_of(task, split, adapters, share=share)
        place = (key, task, split)
        if place not in self._kept:
            self._kept[place] = self.features_of(task, split, adapters, share=share)
        return self._kept[place]


NEAR = 0.3
"""How far, on the unit sphere, an image may be from a mean and still tell how that one moved."""


def prototypes(kit: Kit, task: int, adapters: nn.ModuleList | None, key: str | None) -> Tensor:
    """The mean feature of every class of a task, under the test view.

    ``key`` names a frozen extractor whose features may be kept (see ``Kit.kept_features``).
    """
    if key is None:
        found, labels = kit.features_of(task, "train", adapters)
    else:
        found, labels = kit.kept_features(key, task, "train", adapters)
    return means_of(kit, task, found, labels)


def means_of(kit: Kit, task: int, found: Tensor, labels: Tensor) -> Tensor:
    """The mean of every class of a task, of this process's features and those of the others."""
    count = len(kit.stream[task].classes)
    sums, counts = class_means(found, labels, kit.first_class(task), count)
    sums, counts = kit.devices.total(sums), kit.devices.total(counts)
    return sums / counts.clamp(min=1).unsqueeze(1)


def followed(means: Tensor, before: Tensor, after: Tensor, devices: Devices) -> Tensor:
    """Class means moved as the features of other images near them moved.

    Semantic drift compensation (Yu et al. 2020): images of an old class are gone, but those of the
    new ones were seen by the old features and by the new, and what is near moves alike.
    ``before`` and ``after`` are features of the same images, this process's part of them.
    """
    weights = ((cosine(means, before) - 1) / NEAR**2).exp()
    moved = devices.total(weights @ (after - before))
    return means + moved / devices.total(weights.sum(1, keepdim=True)).clamp(min=1e-30)
