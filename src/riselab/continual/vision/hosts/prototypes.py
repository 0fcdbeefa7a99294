"""Hosts whose classifier is class means: SimpleCIL, the floor for all others, APER and EASE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from riselab.common.settings import NonNegative
from riselab.continual.host import ParameterGroup, Session, saved_parameters
from riselab.continual.rules import head_rule_of
from riselab.continual.vision.hosts.base import VisionHost, VisionHostSettings
from riselab.continual.vision.hosts.classifiers import AdapterSettings
from riselab.continual.vision.kit import AugmentedImages, Kit
from riselab.continual.vision.models import adapter_linears, cosine


class SimpleCIL(VisionHost):
    """Cosine to the mean feature of each class."""

    name = "simple-cil"
    summary = "class means of frozen features; nothing trains"
    trains = "never"
    cached = True

    def __init__(self, kit: Kit, settings: VisionHostSettings) -> None:
        super().__init__(kit, settings)
        self.rows = torch.empty(0, kit.width, device=kit.devices.device)

    def begin(self, task: int) -> Session | None:
        return None

    def finish(self, task: int) -> None:
        self.rows = torch.cat([self.rows, self.kit.prototypes(task, key="vit")])

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        found, labels = self.kit.features_of(task, split, key="vit")
        return cosine(found, self.rows), labels

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows.cpu().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"].to(self.kit.devices.device)

    @classmethod
    def feature_passes(cls, train: Sequence[int], test: Sequence[int]) -> int:
        return sum(train) + sum(test)


class AdaptedPrototypes(VisionHost):
    """Adapters learn with a temporary head, and class means of what they give decide."""

    has_adapters = True
    Settings = AdapterSettings

    def taught(self, task: int, adapters: nn.ModuleList) -> Session:
        """Labels count from the session's first class, and the head knows these classes only.

        It trains with the head's budget; nothing of it is left after the session.
        """
        kit = self.kit
        head, first = kit.new_head(task, self.settings), kit.first_class(task)
        rule = kit.named_rule(self.default_rule)
        rules = rule, head_rule_of(rule, self.settings.head_rule)
        return Session(
            task=task,
            examples=len(kit.stream[task].train),
            groups=(
                ParameterGroup("adapter", dict(adapters.named_parameters()), kit.adapter, rules[0]),
                ParameterGroup("head", dict(head.named_parameters()), kit.head, rules[1]),
            ),
            module=nn.ModuleList([adapters, head]),
            items=AugmentedImages(kit.stream, kit.seed),
            loss=lambda batch, every: cross_entropy(
                head(kit.extract(batch.inputs, adapters)), batch.labels - first
            ),
            linears={f"adapter.{n}": m for n, m in adapter_linears(adapters).items()},
        )


class Aper(AdaptedPrototypes):
    """Features of the original ViT beside those of the adapted one; the classifier is their mean.

    Only the first session trains, so a rule acts there alone; later sessions cost one pass.
    """

    name = "aper"
    summary = "adapters trained in the first session, then class means of both views"
    trains = "first"

    def __init__(self, kit: Kit, settings: AdapterSettings) -> None:
        super().__init__(kit, settings)
        self.adapters = kit.new_adapters(0)
        self.rows = torch.empty(0, 2 * kit.width, device=kit.devices.device)

    def begin(self, task: int) -> Session | None:
        return self.taught(task, self.adapters) if task == 0 else None

    def finish(self, task: int) -> None:
        original = self.kit.prototypes(task, key="vit")
        adapted = self.kit.prototypes(task, self.adapters, "adapted")
        self.rows = torch.cat([self.rows, torch.cat([original, adapted], dim=1)])

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        original, labels = self.kit.features_of(task, split, key="vit")
        adapted, _ = self.kit.features_of(task, split, self.adapters, key="adapted")
        return cosine(torch.cat([original, adapted], dim=1), self.rows), labels

    def state_dict(self) -> dict[str, Any]:
        return {
            "adapters": saved_parameters(self.adapters),
            "rows": self.rows.cpu().clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adapters.load_state_dict(state["adapters"])
        self.rows = state["rows"].to(self.kit.devices.device)

    @classmethod
    def feature_passes(cls, train: Sequence[int], test: Sequence[int]) -> int:
        return 2 * (sum(train) + sum(test))


@dataclass(frozen=True)
class EaseSettings(AdapterSettings):
    """The temporary head, and the weight of other subspaces."""

    alpha: NonNegative = 0.1
    """Weight of the other subspaces beside a class's own."""


class Ease(AdaptedPrototypes):
    """Class means in every subspace; those of old classes in new subspaces are completed.

    Frozen adapters give the same features for ever, so each test image passes each of them once.
    """

    name = "ease"
    summary = "new adapters per task, class means in all subspaces, reweighted"
    keeps_parameters = False
    Settings = EaseSettings

    def __init__(self, kit: Kit, settings: EaseSettings) -> None:
        super().__init__(kit, settings)
        self.sets: list[nn.ModuleList] = []
        self.means: list[list[Tensor]] = []
        """``means[i][j]``: mean features of task i's classes in subspace j <= i."""

    def begin(self, task: int) -> Session:
        self.sets.append(self.kit.new_adapters(task))
        return self.taught(task, self.sets[-1])

    def finish(self, task: int) -> None:
        self.means.append([self.kit.prototypes(task, adapters) for adapters in self.sets])

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        pairs = [
            self.kit.features_of(task, split, adapters, key=f"subspace {j}")
            for j, adapters in enumerate(self.sets)
        ]
        found = [features for features, _ in pairs]
        return ensemble(found, complete(self.means), self.settings.alpha), pairs[0][1]

    def state_dict(self) -> dict[str, Any]:
        return {
            "sets": [saved_parameters(adapters) for adapters in self.sets],
            "means": [[mean.cpu().clone() for mean in row] for row in self.means],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sets = []
        for task, values in enumerate(state["sets"]):
            adapters = self.kit.new_adapters(task)
            adapters.load_state_dict(values)
            self.sets.append(adapters.requires_grad_(False))
        device = self.kit.devices.device
        self.means = [[mean.to(device) for mean in row] for row in state["means"]]

    @classmethod
    def feature_passes(cls, train: Sequence[int], test: Sequence[int]) -> int:
        return len(test) * sum(test) + sum(n * (t + 1) for t, n in enumerate(train))


def complete(means: list[list[Tensor]]) -> list[list[Tensor]]:
    """Old classes in subspaces that came after them: mixtures of the classes known in both.

    For task i in subspace j > i, with R the classes of tasks j and later: the row of class c is
    ``sum_r softmax_r(cos(w_c, w_r in subspace i)) w_r in subspace j``.
    """
    count = len(means)
    rows = [list(row) for row in means]
    for i in range(count):
        for j in range(i + 1, count):
            here = torch.cat([means[r][i] for r in range(j, count)])
            there = torch.cat([means[r][j] for r in range(j, count)])
            rows[i].append(torch.softmax(cosine(means[i][i], here), dim=1) @ there)
    return rows


def ensemble(found: list[Tensor], rows: list[list[Tensor]], alpha: float) -> Tensor:
    """``cos(f_i, w_c,i) + alpha / t * sum over j != i of cos(f_j, w_c,j)`` for c of task i."""
    last = len(found) - 1
    scores = []
    for i, by_subspace in enumerate(rows):
        own = cosine(found[i], by_subspace[i])
        others = [cosine(found[j], by_subspace[j]) for j in range(len(found)) if j != i]
        scores.append(own + alpha / last * sum(others) if others else own)
    return torch.cat(scores, dim=1)
