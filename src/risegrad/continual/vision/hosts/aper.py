"""APER with adapters: adapt in the first session only, then class means of both views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from risegrad.continual.host import saved_parameters
from risegrad.continual.session import Session
from risegrad.continual.update_rules import head_rule_of
from risegrad.continual.vision.classifier_heads import cosine
from risegrad.continual.vision.hosts.adapter_classifier import AdapterSettings
from risegrad.continual.vision.hosts.throwaway_head import adapters_with_temporary_head
from risegrad.continual.vision.hosts.vision_host import VisionHost
from risegrad.continual.vision.prototypes import prototypes
from risegrad.continual.vision.vision_kit import Kit


class Aper(VisionHost):
    """Features of the original ViT beside those of the adapted one; the classifier is their mean.

    Only the first session trains, so a rule acts there alone; later sessions cost one pass.
    """

    name = "aper"
    summary = "adapters trained in the first session, then class means of both views"
    trains = "first"
    has_adapters = True
    Settings = AdapterSettings

    def __init__(self, kit: Kit, settings: AdapterSettings) -> None:
        super().__init__(kit, settings)
        self.adapters = kit.new_adapters(0)
        self.rows = torch.empty(0, 2 * kit.width, device=kit.devices.device)

    def begin(self, task: int) -> Session | None:
        if task > 0:
            return None
        rule = self.kit.named_rule(self.default_rule)
        rules = (rule, head_rule_of(rule, self.settings.head_rule))
        return adapters_with_temporary_head(self.kit, task, self.adapters, rules, self.settings)

    def finish(self, task: int) -> None:
        original = prototypes(self.kit, task, None, "vit")
        adapted = prototypes(self.kit, task, self.adapters, "adapted")
        self.rows = torch.cat([self.rows, torch.cat([original, adapted], dim=1)])

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        original, labels = self.kit.kept_features("vit", task, split)
        adapted, _ = self.kit.kept_features("adapted", task, split, self.adapters)
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
