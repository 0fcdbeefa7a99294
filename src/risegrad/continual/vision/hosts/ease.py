"""EASE: a new set of adapters per task, and one classifier over the subspaces of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from risegrad.common.declared_fields import NonNegative
from risegrad.continual.host import saved_parameters
from risegrad.continual.session import Session
from risegrad.continual.update_rules import head_rule_of
from risegrad.continual.vision.classifier_heads import cosine
from risegrad.continual.vision.hosts.adapter_classifier import AdapterSettings
from risegrad.continual.vision.hosts.throwaway_head import adapters_with_temporary_head
from risegrad.continual.vision.hosts.vision_host import VisionHost
from risegrad.continual.vision.prototypes import prototypes
from risegrad.continual.vision.vision_kit import Kit


@dataclass(frozen=True)
class EaseSettings(AdapterSettings):
    """The temporary head, and the weight of other subspaces."""

    alpha: NonNegative = 0.1
    """Weight of the other subspaces beside a class's own."""


class Ease(VisionHost):
    """Class means in every subspace; those of old classes in new subspaces are completed.

    Frozen adapters give the same features for ever, so each test image passes each of them once.
    """

    name = "ease"
    summary = "new adapters per task, class means in all subspaces, reweighted"
    has_adapters = True
    keeps_parameters = False
    Settings = EaseSettings

    def __init__(self, kit: Kit, settings: EaseSettings) -> None:
        super().__init__(kit, settings)
        self.sets: list[nn.ModuleList] = []
        self.means: list[list[Tensor]] = []
        """``means[i][j]``: mean features of task i's classes in subspace j <= i."""

    def begin(self, task: int) -> Session:
        self.sets.append(self.kit.new_adapters(task))
        rule = self.kit.named_rule(self.default_rule)
        rules = (rule, head_rule_of(rule, self.settings.head_rule))
        return adapters_with_temporary_head(self.kit, task, self.sets[-1], rules, self.settings)

    def finish(self, task: int) -> None:
        self.means.append([prototypes(self.kit, task, adapters, None) for adapters in self.sets])

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        pairs = [
            self.kit.kept_features(f"subspace {j}", task, split, adapters)
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
