"""What every vision host works with: the stream, the frozen ViT, budgets, rule, devices, seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from risegrad.common.seeds import generator_for, seed_for
from riselab.continual.batches import Loader
from riselab.continual.devices import Devices
from riselab.continual.host import Ref, Stream
from riselab.continual.learning import HostKit
from riselab.continual.vision.models import (
    Head,
    class_means,
    cosine,
    feature_width,
    features,
    make_adapters,
)
from riselab.continual.vision.streams import ImageSplit

if TYPE_CHECKING:
    from riselab.continual.vision.run import VisionRun


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
    """Images of a stream, each in a view that (seed, task, epoch, index) alone decide; without a
    seed in the fixed view of testing."""

    at_hand: ClassVar[bool] = False
    stream: Stream[ImageSplit]
    seed: int | None
    split: Literal["train", "validation", "test"] = "train"

    def fetch(self, refs: Sequence[Ref], epoch: int) -> VisionBatch:
        """The named images, of one or of several tasks."""
        images, labels = [torch.empty(0)], [torch.empty(0, dtype=torch.int64)]
        # Replayed examples stand after the task's own, so neighbours of one task go in one call.
        for task, group in itertools.groupby(refs, key=lambda ref: ref[0]):
            data: ImageSplit = getattr(self.stream[task], self.split)
            indices = [index for _, index in group]
            if self.seed is None:
                images.append(data.images(indices, train=False))
            else:
                seed = seed_for(seed_for(self.seed, "augment", epoch), task)
                images.append(data.images(indices, train=True, seed=seed))
            labels.append(data.labels[indices])
        # An empty part has no shape that others could be joined to.
        return VisionBatch(torch.cat(images[1:] or images), torch.cat(labels))


@dataclass(frozen=True)
class CachedFeatures:
    """Features and labels per task, on the device; the same in every epoch."""

    at_hand: ClassVar[bool] = True
    tasks: tuple[tuple[Tensor, Tensor], ...]

    def fetch(self, refs: Sequence[Ref], epoch: int) -> VisionBatch:
        """The features of the named images."""
        if not refs:
            return VisionBatch(torch.empty(0), torch.empty(0, dtype=torch.int64))
        found = (torch.stack([self.tasks[task][part][i] for task, i in refs]) for part in (0, 1))
        return VisionBatch(*found)


class Kit(HostKit):
    """The parts that hosts share. ``extract(images, adapters)`` gives features."""

    stream: Stream[ImageSplit]

    def __init__(
        self, settings: VisionRun, stream: Stream[ImageSplit], devices: Devices, vit: nn.Module,
        base_head: Head | None = None,
    ) -> None:  # fmt: skip
        super().__init__(settings, stream, devices)
        self.vit, self.model = vit.to(devices.device), settings.model
        self.base_head = base_head
        """The head with which the first task was taught before the stream, where it was."""
        compute = torch.compile(features) if self.loop.compile else features
        self.extract: Callable[[Tensor, nn.ModuleList | None], Tensor] = lambda images, adapters: (
            compute(self.vit, images, adapters)
        )
        self._kept: dict[tuple[str, int, str], tuple[Tensor, Tensor]] = {}
        self._loaders: dict[str, Loader[VisionBatch]] = {}

    @property
    def width(self) -> int:
        """How many numbers a feature has."""
        return feature_width(self.vit)

    def first_class(self, task: int) -> int:
        """The label of a task's first class: labels are positions in the order of the stream."""
        return sum(len(earlier.classes) for earlier in self.stream.tasks[:task])

    def new_head(self, task: int, settings: Any) -> Head:
        """A classifier for the classes of a task, with its own random start."""
        head = Head(settings.head, self.width, settings.sigma).to(self.devices.device)
        self.grow(head, task)
        return head

    def grow(self, head: Head, task: int) -> None:
        """Rows for the classes of a task."""
        head.grow(len(self.stream[task].classes), generator_for(self.seed, "head", task))

    def new_adapters(self, task: int) -> nn.ModuleList:
        """New adapters for every block of the ViT; each task has its own random start."""
        depth = len(self.vit.blocks)  # type: ignore[arg-type]
        generator = generator_for(self.seed, "adapters", task)
        return make_adapters(self.model, self.width, depth, generator).to(self.devices.device)

    def features_of(
        self, task: int, split: str, adapters: nn.ModuleList | None = None, *, key: str = "",
        share: bool = True,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Features and labels of a split in the test view.

        With a ``key``, the name of a part that no longer trains, they are computed once. With
        ``share``, several processes compute a part each, and get only that.
        """
        place = (key, task, split)
        if place in self._kept:
            return self._kept[place]
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
        both = torch.cat(found).to(device), torch.cat(labels).to(device)
        if key and self.loop.cache == "auto":
            self._kept[place] = both
        return both

    def _loader(self, split: Any) -> Loader[VisionBatch]:
        """One for the whole run: its processes are there at the next scoring."""
        if split not in self._loaders:
            items = AugmentedImages(self.stream, None, split)
            self._loaders[split] = Loader(items, self.loop.workers)
        return self._loaders[split]

    def prototypes(self, task: int, adapters: nn.ModuleList | None = None, key: str = "") -> Tensor:
        """The mean feature of every class of a task, under the test view."""
        return self.means_of(task, *self.features_of(task, "train", adapters, key=key))

    def means_of(self, task: int, found: Tensor, labels: Tensor) -> Tensor:
        """The mean of every class of a task, of this process's features and those of the others."""
        count = len(self.stream[task].classes)
        sums, counts = class_means(found, labels, self.first_class(task), count)
        sums, counts = self.devices.total(sums), self.devices.total(counts)
        return sums / counts.clamp(min=1).unsqueeze(1)


NEAR = 0.3
"""How far, on the unit sphere, an image may be from a mean and still tell how that one moved."""


def followed(means: Tensor, before: Tensor, after: Tensor, devices: Devices) -> Tensor:
    """Class means moved as the features of other images near them moved.

    Semantic drift compensation (Yu et al. 2020): images of an old class are gone, but those of the
    new ones were seen by the old features and by the new, and what is near moves alike.
    ``before`` and ``after`` are features of the same images, this process's part of them.
    """
    weights = ((cosine(means, before) - 1) / NEAR**2).exp()
    moved = devices.total(weights @ (after - before))
    return means + moved / devices.total(weights.sum(1, keepdim=True)).clamp(min=1e-30)
