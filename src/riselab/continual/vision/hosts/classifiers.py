"""Adapter + Cls.: one set of adapters and one head, trained in every session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from risegrad.common.seeds import generator_for
from riselab.common.settings import Positive
from riselab.continual.host import Items, ParameterGroup, Session, saved_parameters
from riselab.continual.rules import HeadRule, Rule, head_rule_of
from riselab.continual.vision.hosts.base import VisionHost, VisionHostSettings, session_loss
from riselab.continual.vision.kit import (
    AugmentedImages,
    CachedFeatures,
    Kit,
    VisionBatch,
    followed,
    means_of,
    prototypes,
)
from riselab.continual.vision.models import Head, adapter_linears, cosine

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
                "follow_drift moves class means, which main='accuracy' does not use: choose "
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


@dataclass(frozen=True)
class ZoFcSettings(AdapterClassifierSettings):
    """As Adapter + Cls., with a head that is always first-order."""

    head_rule: HeadRule = "fo"


class ZoFc(AdapterClassifier):
    """The paper's host: adapters by SPSA (q = 4, epsilon = 1e-3, clipped), head by SGD."""

    name = "zo-fc"
    summary = "adapters zeroth-order, head first-order"
    default_rule = "zo"
    Settings = ZoFcSettings


class ZoFcRise(ZoFc):
    """ZO-FC with the exact gradient of the adapters, shaped by RISE, instead of an estimate."""

    name = "zo-fc-rise"
    summary = "ZO-FC with RISE on the adapters' exact gradient"
    default_rule = "rise"


def adapters_with_temporary_head(
    kit: Kit,
    task: int,
    adapters: nn.ModuleList,
    rules: tuple[Rule, Rule],
    settings: AdapterSettings,
) -> Session:
    """Labels count from the session's first class, and the head knows these classes only.

    ``rules`` are those of the adapters and of the head, which trains with the adapters' budget.
    """
    head = Head(settings.head, kit.width, settings.sigma).to(kit.devices.device)
    head.grow(len(kit.stream[task].classes), generator_for(kit.seed, "head", task))
    first = kit.first_class(task)
    return Session(
        task=task,
        examples=len(kit.stream[task].train),
        groups=(
            ParameterGroup("adapter", dict(adapters.named_parameters()), kit.adapter, rules[0]),
            ParameterGroup("head", dict(head.named_parameters()), kit.head, rules[1]),
        ),
        module=nn.ModuleList([adapters, head]),
        items=AugmentedImages(kit.stream, kit.seed),
        loss=lambda batch, every: session_loss(
            head(kit.extract(batch.inputs, adapters)), batch.labels - first, 0, every
        ),
        linears={f"adapter.{n}": m for n, m in adapter_linears(adapters).items()},
    )
