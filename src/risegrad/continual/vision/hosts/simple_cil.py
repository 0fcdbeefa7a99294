"""SimpleCIL: class means of frozen features. Nothing trains; the floor that others must beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from risegrad.continual.session import Session
from risegrad.continual.vision.classifier_heads import cosine
from risegrad.continual.vision.hosts.vision_host import VisionHost, VisionHostSettings
from risegrad.continual.vision.prototypes import prototypes
from risegrad.continual.vision.vision_kit import Kit


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
        self.rows = torch.cat([self.rows, prototypes(self.kit, task, None, "vit")])

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        found, labels = self.kit.kept_features("vit", task, split)
        return cosine(found, self.rows), labels

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows.cpu().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows = state["rows"].to(self.kit.devices.device)

    @classmethod
    def feature_passes(cls, train: Sequence[int], test: Sequence[int]) -> int:
        return sum(train) + sum(test)
