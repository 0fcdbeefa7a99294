"""Adapter + Cls.: one set of adapters and one head, trained in every session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from risegrad.common.seeds import generator_for
from risegrad.continual.host import saved_parameters
from risegrad.continual.session import ParameterGroup, Session
from risegrad.continual.update_rules import HeadRule, head_rule_of
from risegrad.continual.vision.adapters import adapter_linears
from risegrad.continual.vision.classifier_heads import Head, cosine
from risegrad.continual.vision.hosts.learnable_classifier import HeadKind, HeadSettings
from risegrad.continual.vision.hosts.vision_host import VisionHost, session_loss
from risegrad.continual.vision.image_batches import AugmentedImages, VisionBatch
from risegrad.continual.vision.prototypes import followed, means_of, prototypes
from risegrad.continual.vision.vision_kit import Kit


@dataclass(frozen=True)
class AdapterSettings(HeadSettings):
    """The classifier, and which rule it follows."""

    head: HeadKind = "cosine"
    head_rule: HeadRule = "same"
    """``same`` as the adapters' rule, or always ``fo``."""


@dataclass(frozen=True)
class AdapterClassifierSettings(AdapterSettings):
    """Also, which score counts."""

    main: Literal["accuracy", "within_task", "class_means", "both_views"] = "accuracy"
    """``accuracy``: the head's, over all classes seen, and nothing else is scored. The others score
    in all four ways: the head's over each task's own classes; and the nearest of class means, each
    taken when its session ended, over all classes seen, of adapted features (``class_means``) or of
    these beside the original ViT's, as APER has them (``both_views``)."""
    follow_drift: bool = False
    """Whether class means of earlier sessions follow the features, by how training images of the
    new session near them moved; otherwise they stay as they were taken."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.follow_drift and self.main == "accuracy":
            raise ValueError(
                "follow_drift moves class means, which main='accuracy' does not take: choose "
                "main='class_means', 'both_views' or 'within_task'"
            )


class AdapterClassifier(VisionHost):
    """Adapters drift with every session: the host that forgets most, and the cheapest."""

    name = "adapter-classifier"
    summary = "one set of adapters and a cosine head, trained in every session"
    has_adapters = True
    Settings = AdapterClassifierSettings

    def __init__(self, kit: Kit, settings: AdapterClassifierSettings) -> None:
        super().__init__(kit, settings)
        self.main_score = settings.main
        self.means = torch.empty(0, 2 * kit.width, device=kit.devices.device)
        self.began: Tensor | None = None
        """Features of the session's training images when it began, where means follow them."""
        self.adapters = kit.new_adapters(0)
        self.head = Head(settings.head, kit.width, settings.sigma).to(kit.devices.device)

    def begin(self, task: int) -> Session:
        before, count = self.head.classes, len(self.kit.stream[task].classes)
        self.head.grow(count, generator_for(self.kit.seed, "head", task))
        if self.settings.follow_drift and task:
            self.began = self.kit.features_of(task, "train", self.adapters)[0]
        rule = self.kit.named_rule(self.default_rule)
        head_rule = head_rule_of(rule, self.settings.head_rule)
        return Session(
            task=task,
            examples=len(self.kit.stream[task].train),
            groups=(
                ParameterGroup(
                    "adapter", dict(self.adapters.named_parameters()), self.kit.adapter, rule
                ),
                ParameterGroup(
                    "head", dict(self.head.named_parameters()), self.kit.head, head_rule
                ),
            ),
            module=nn.ModuleList([self.adapters, self.head]),
            items=AugmentedImages(self.kit.stream, self.kit.seed),
            loss=lambda batch, every: session_loss(self.logits(batch), batch.labels, before, every),
            logits=self.logits,
            loss_of_logits=lambda logits, batch, every: session_loss(
                logits, batch.labels, before, every
            ),
            predictions=lambda batch: self.logits(batch)[:, before:],
            features=self.features,
            seen_before=before,
            outside={f"head.{name}": rows for name, rows in self.head.rows(before).items()},
            linears={f"adapter.{n}": m for n, m in adapter_linears(self.adapters).items()},
        )

    def finish(self, task: int) -> None:
        """Class means of both views are taken, where they count."""
        if not self._by_means:
            return
        found, labels = self.kit.features_of(task, "train", self.adapters)
        if self.began is not None:
            earlier = self.means[:, self.kit.width :]
            earlier.copy_(followed(earlier, self.began, found, self.kit.devices))
        original = prototypes(self.kit, task, None, "vit")
        adapted = means_of(self.kit, task, found, labels)
        self.means = torch.cat([self.means, torch.cat([original, adapted], dim=1)])

    def logits(self, batch: VisionBatch) -> Tensor:
        """Scores of all classes, with gradients."""
        scores: Tensor = self.head(self.features(batch))
        return scores

    def features(self, batch: VisionBatch) -> Tensor:
        """What the head is given."""
        return self.kit.extract(batch.inputs, self.adapters)

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        found, labels = self.kit.features_of(task, split, self.adapters)
        return self.head(found), labels

    def predict_all(self, task: int, split: str) -> tuple[dict[str, Tensor], Tensor]:
        if not self._by_means:
            return super().predict_all(task, split)
        found, labels = self.kit.features_of(task, split, self.adapters)
        logits = self.head(found)
        first, count = self.kit.first_class(task), len(self.kit.stream[task].classes)
        within = torch.full_like(logits, -torch.inf)
        within[:, first : first + count] = logits[:, first : first + count]
        both = torch.cat([self.kit.kept_features("vit", task, split)[0], found], dim=1)
        return {
            "accuracy": logits,
            "within_task": within,
            "class_means": cosine(found, self.means[:, self.kit.width :]),
            "both_views": cosine(both, self.means),
        }, labels

    @property
    def _by_means(self) -> bool:
        return self.main_score != "accuracy"

    def state_dict(self) -> dict[str, Any]:
        return {
            "adapters": saved_parameters(self.adapters),
            "head": saved_parameters(self.head),
            "means": self.means.cpu().clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adapters.load_state_dict(state["adapters"])
        self.head.load(state["head"])
        self.means = state["means"].to(self.kit.devices.device)
