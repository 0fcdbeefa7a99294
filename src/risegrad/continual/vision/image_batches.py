"""Training batches in vision: augmented images, or features computed once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from risegrad.common.seeds import seed_for
from risegrad.continual.session import Ref
from risegrad.continual.stream import Stream
from risegrad.continual.vision.streams import ImageSplit


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
