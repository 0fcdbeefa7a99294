"""What all vision hosts share: class-incremental scoring, and a session-local cross-entropy."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from riselab.common.settings import Checked
from riselab.continual.host import Ref
from riselab.continual.learning import KitHost
from riselab.continual.vision.kit import Kit


@dataclass(frozen=True)
class VisionHostSettings(Checked):
    """What every host's settings have."""

    name: str = ""
    """Which host."""


class VisionHost(KitHost):
    """A model of images, in most hosts a frozen ViT with something beside it.

    ``Settings`` are the host's own, a dataclass.
    """

    summary: ClassVar[str]
    Settings: ClassVar[type[VisionHostSettings]] = VisionHostSettings
    cached: ClassVar[bool] = False
    """Whether training sees features that were computed once."""
    has_adapters: ClassVar[bool] = False
    """Whether it puts adapters beside the blocks of the ViT, so that there must be blocks."""
    shares_classes: ClassVar[bool] = False
    """Whether all tasks have the same classes (a stream of domains); else each has new ones."""

    kit: Kit

    def data_bytes(self, refs: Sequence[Ref]) -> int:
        image = self.kit.stream[0].train.images([0], train=False)
        return len(refs) * image.numel()

    @abstractmethod
    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        """Scores over all classes seen, and labels, of this process's part of a split."""

    def predict_all(self, task: int, split: str) -> tuple[dict[str, Tensor], Tensor]:
        """Scores over all classes by the name of what they are used for, and labels."""
        logits, labels = self.predict(task, split)
        return {"accuracy": logits}, labels

    @torch.no_grad()
    def hits(self, task: int, split: str) -> tuple[Iterable[str], Tensor]:
        found, labels = self.predict_all(task, split)
        right = [(logits.argmax(1) == labels).sum() for logits in found.values()]
        return found, torch.stack([*right, torch.full_like(right[0], len(labels))])

    @classmethod
    def feature_passes(cls, train: Sequence[int], test: Sequence[int]) -> int:
        """Images through the ViT outside training, for an estimate: here, to score."""
        return sum(itertools.accumulate(test))


def session_loss(logits: Tensor, labels: Tensor, seen_before: int, every_class: bool) -> Tensor:
    """Cross-entropy over the session's own classes: old logits get no gradient through the softmax.

    With ``every_class`` over all classes seen, which replayed examples need.
    """
    if every_class:
        return cross_entropy(logits, labels)
    return cross_entropy(logits[:, seen_before:], labels - seen_before)
