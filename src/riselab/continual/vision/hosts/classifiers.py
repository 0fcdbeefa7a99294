"""Hosts with a trained classifier: on frozen features, beside adapters, on a whole network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from risegrad.common.imports import need
from risegrad.common.seeds import generator_for
from riselab.common.settings import Positive
from riselab.continual.host import (
    Items,
    ParameterGroup,
    Session,
    TrainingBudget,
    saved_parameters,
)
from riselab.continual.rules import HeadRule, head_rule_of
from riselab.continual.vision.hosts.base import VisionHost, VisionHostSettings, session_loss
from riselab.continual.vision.kit import AugmentedImages, CachedFeatures, Kit, VisionBatch, followed
from riselab.continual.vision.models import Head, HeadKind, adapter_linears, cosine


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
        before = self.head.classes
        self.kit.grow(self.head, task)
        rule = self.kit.named_rule(self.default_rule)

        def loss(logits: Tensor, batch: VisionBatch, every: bool) -> Tensor:
            return session_loss(logits, batch.labels, before, every)

        return Session(
            task=task,
            examples=len(self.kit.stream[task].train),
            groups=(
                ParameterGroup("head", dict(self.head.named_parameters()), self.kit.head, rule),
            ),
            module=self.head,
            items=self._items(task),
            loss=lambda batch, every: loss(self.logits(batch), batch, every),
            logits=self.logits,
            loss_of_logits=loss,
            predictions=lambda batch: self.logits(batch)[:, before:],
            seen_before=before,
            outside={f"head.{name}": rows for name, rows in self.head.rows(before).items()},
        )

    def logits(self, batch: VisionBatch) -> Tensor:
        """Scores of all classes, with gradients."""
        scores: Tensor = self.head(self.features(batch))
        return scores

    def features(self, batch: VisionBatch) -> Tensor:
        """What the head is given: cached features, or those of images where the cache is off."""
        images = batch.inputs.ndim > 2
        return self.kit.extract(batch.inputs, None) if images else batch.inputs

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        found, labels = self.kit.features_of(task, split, key="vit")
        return self.head(found), labels

    def state_dict(self) -> dict[str, Any]:
        return {"head": saved_parameters(self.head)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.head.load(state["head"])

    def _items(self, task: int) -> Items[VisionBatch]:
        if self.kit.loop.cache == "never":
            return AugmentedImages(self.kit.stream, self.kit.seed)
        # Earlier tasks too: a replay buffer may ask for them.
        every = range(task + 1)
        return CachedFeatures(
            tuple(self.kit.features_of(t, "train", key="vit", share=False) for t in every)
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


class AdapterClassifier(LearnableClassifier):
    """Adapters drift with every session: the host that forgets most, and the cheapest."""

    name = "adapter-classifier"
    summary = "one set of adapters and a cosine head, trained in every session"
    cached = False
    has_adapters = True
    Settings = AdapterClassifierSettings
    feature_passes = VisionHost.feature_passes

    def __init__(self, kit: Kit, settings: AdapterClassifierSettings) -> None:
        super().__init__(kit, settings)
        self.main_score = settings.main
        self.means = torch.empty(0, 2 * kit.width, device=kit.devices.device)
        self.began: Tensor | None = None
        """Features of the session's training images when it began, where means follow them."""
        self.adapters = kit.new_adapters(0)

    def begin(self, task: int) -> Session:
        session = super().begin(task)
        if self.settings.follow_drift and task:
            self.began = self.kit.features_of(task, "train", self.adapters)[0]
        (head,), own = session.groups, dict(self.adapters.named_parameters())
        head_rule = head_rule_of(head.rule, self.settings.head_rule)
        adapter = ParameterGroup("adapter", own, self.kit.adapter, head.rule)
        return replace(
            session,
            groups=(adapter, replace(head, rule=head_rule)),
            module=nn.ModuleList([self.adapters, self.head]),
            features=self.features,
            linears={f"adapter.{n}": m for n, m in adapter_linears(self.adapters).items()},
        )

    def finish(self, task: int) -> None:
        """Class means of both views are taken, where they count."""
        if self.main_score == "accuracy":
            return
        found, labels = self.kit.features_of(task, "train", self.adapters)
        if self.began is not None:
            earlier = self.means[:, self.kit.width :]
            earlier.copy_(followed(earlier, self.began, found, self.kit.devices))
        original = self.kit.prototypes(task, key="vit")
        both = torch.cat([original, self.kit.means_of(task, found, labels)], dim=1)
        self.means = torch.cat([self.means, both])

    def features(self, batch: VisionBatch) -> Tensor:
        return self.kit.extract(batch.inputs, self.adapters)

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        found, labels = self.kit.features_of(task, split, self.adapters)
        return self.head(found), labels

    def predict_all(self, task: int, split: str) -> tuple[dict[str, Tensor], Tensor]:
        if self.main_score == "accuracy":
            return super().predict_all(task, split)
        found, labels = self.kit.features_of(task, split, self.adapters)
        logits = self.head(found)
        first, count = self.kit.first_class(task), len(self.kit.stream[task].classes)
        within = torch.full_like(logits, -torch.inf)
        within[:, first : first + count] = logits[:, first : first + count]
        both = torch.cat([self.kit.features_of(task, split, key="vit")[0], found], dim=1)
        return {
            "accuracy": logits,
            "within_task": within,
            "class_means": cosine(found, self.means[:, self.kit.width :]),
            "both_views": cosine(both, self.means),
        }, labels

    def state_dict(self) -> dict[str, Any]:
        means = {"means": self.means.cpu().clone()}
        return {"adapters": saved_parameters(self.adapters), **super().state_dict(), **means}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.adapters.load_state_dict(state["adapters"])
        self.means = state["means"].to(self.kit.devices.device)

    def _items(self, task: int) -> Items[VisionBatch]:
        return AugmentedImages(self.kit.stream, self.kit.seed)


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


@dataclass(frozen=True)
class FineTuneSettings(VisionHostSettings):
    """Which rule the head follows; it is linear."""

    head_rule: HeadRule = "same"
    """``same`` as the network's rule, or always ``fo``."""


class FineTune(VisionHost):
    """Nothing is frozen: the classes stay and the inputs change, so what drifts is all there is.

    Where ``model.base_epochs`` has taught the first task before the stream, its session takes no
    step: all rules start from the same model, and additions still look at that task's data.
    """

    name = "fine-tune"
    summary = "all weights and one shared head, trained in every session (domains)"
    shares_classes = True
    masks_classes = False
    scores_ahead = True
    Settings = FineTuneSettings

    def __init__(self, kit: Kit, settings: FineTuneSettings) -> None:
        super().__init__(kit, settings)
        self.network = kit.vit
        self.head = kit.base_head or self._new_head()
        self.head.to(kit.devices.device)

    def begin(self, task: int) -> Session:
        rule = self.kit.named_rule(self.default_rule)
        head_rule = head_rule_of(rule, self.settings.head_rule)
        body, head = dict(self.network.named_parameters()), dict(self.head.named_parameters())
        parts = self.network.named_modules()
        return Session(
            task=task,
            examples=len(self.kit.stream[task].train),
            groups=(
                ParameterGroup("network", body, self._budget(self.kit.adapter, task), rule),
                ParameterGroup("head", head, self._budget(self.kit.head, task), head_rule),
            ),
            module=nn.ModuleList([self.network, self.head]),
            items=AugmentedImages(self.kit.stream, self.kit.seed),
            loss=lambda batch, every: cross_entropy(self.logits(batch), batch.labels),
            logits=self.logits,
            loss_of_logits=lambda logits, batch, every: cross_entropy(logits, batch.labels),
            predictions=self.logits,
            features=self.features,
            seen_before=0 if task == 0 else self.head.classes,
            linears={f"network.{n}.weight": m for n, m in parts if isinstance(m, nn.Linear)},
        )

    def logits(self, batch: VisionBatch) -> Tensor:
        """Scores of all classes, with gradients."""
        scores: Tensor = self.head(self.features(batch))
        return scores

    def features(self, batch: VisionBatch) -> Tensor:
        """What the head is given."""
        return self.kit.extract(batch.inputs, None)

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        self.network.eval()
        found, labels = self.kit.features_of(task, split)
        return self.head(found), labels

    def state_dict(self) -> dict[str, Any]:
        return {"network": saved_parameters(self.network), "head": saved_parameters(self.head)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"], strict=False)  # buffers never change
        self.head.load(state["head"])

    def keep(self, folder: Path) -> None:
        """Also ``model.safetensors``: the network with its head, by timm's names."""
        super().keep(folder)
        head = {f"head.{name}": p for name, p in saved_parameters(self.head).items()}
        whole = {
            name: t.detach().cpu().contiguous() for name, t in self.network.state_dict().items()
        }
        files = need("safetensors.torch", "vision", "loop.keep_weights")
        files.save_file(whole | head, folder / "model.safetensors")

    def _new_head(self) -> Head:
        head = Head("linear", self.kit.width)
        head.grow(len(self.kit.stream[0].classes), generator_for(self.kit.seed, "head", 0))
        return head

    def _budget(self, budget: TrainingBudget, task: int) -> TrainingBudget:
        taught = task == 0 and self.kit.base_head is not None
        return replace(budget, epochs=0) if taught else budget
