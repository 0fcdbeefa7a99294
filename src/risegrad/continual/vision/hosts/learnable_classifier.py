"""Learnable Cls.: a trained head on frozen features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from risegrad.common.declared_fields import Positive
from risegrad.common.seeds import generator_for
from risegrad.continual.host import saved_parameters
from risegrad.continual.session import Items, ParameterGroup, Session
from risegrad.continual.vision.classifier_heads import Head
from risegrad.continual.vision.hosts.vision_host import (
    VisionHost,
    VisionHostSettings,
    session_loss,
)
from risegrad.continual.vision.image_batches import AugmentedImages, CachedFeatures, VisionBatch
from risegrad.continual.vision.vision_kit import Kit

HeadKind = Literal["linear", "cosine"]


@dataclass(frozen=True)
class HeadSettings(VisionHostSettings):
    """The classifier."""

    head: HeadKind = "linear"
    """A linear layer, or cosines with a learned scale."""
    sigma: Positive = 1.0
    """Start of the cosine head's learned scale."""


class LearnableClassifier(VisionHost):
    """The ViT never changes, so its features are computed once and the head trains on those."""

    name = "learnable-classifier"
    summary = "frozen features and a trained head"
    cached = True
    Settings = HeadSettings

    def __init__(self, kit: Kit, settings: HeadSettings) -> None:
        super().__init__(kit, settings)
        self.head = Head(settings.head, kit.width, settings.sigma).to(kit.devices.device)

    def begin(self, task: int) -> Session:
        before, count = self.head.classes, len(self.kit.stream[task].classes)
        self.head.grow(count, generator_for(self.kit.seed, "head", task))
        rule = self.kit.named_rule(self.default_rule)
        group = ParameterGroup("head", dict(self.head.named_parameters()), self.kit.head, rule)
        return Session(
            task=task,
            examples=len(self.kit.stream[task].train),
            groups=(group,),
            module=self.head,
            items=self._items(task),
            loss=lambda batch, every: session_loss(self.logits(batch), batch.labels, before, every),
            logits=self.logits,
            loss_of_logits=lambda logits, batch, every: session_loss(
                logits, batch.labels, before, every
            ),
            predictions=lambda batch: self.logits(batch)[:, before:],
            seen_before=before,
            outside={f"head.{name}": rows for name, rows in self.head.rows(before).items()},
        )

    def logits(self, batch: VisionBatch) -> Tensor:
        """Scores of all classes from cached features, or from images."""
        found = batch.inputs
        if found.ndim > 2:  # images: the cache is off
            found = self.kit.extract(found, None)
        scores: Tensor = self.head(found)
        return scores

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        found, labels = self.kit.kept_features("vit", task, split)
        return self.head(found), labels

    def state_dict(self) -> dict[str, Any]:
        return {"head": saved_parameters(self.head)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.head.load(state["head"])

    def _items(self, task: int) -> Items[VisionBatch]:
        if self.kit.loop.cache == "never":
            return AugmentedImages(self.kit.stream, self.kit.seed)
        # Earlier tasks too: a replay buffer may ask for them.
        pairs = {t: self.kit.kept_features("vit", t, "train", share=False) for t in range(task + 1)}
        return CachedFeatures(
            {t: found for t, (found, _) in pairs.items()},
            {t: labels for t, (_, labels) in pairs.items()},
        )

    @classmethod
    def feature_passes(cls, train: Sequence[int], test: Sequence[int]) -> int:
        return sum(train) + sum(test)
