"""Mean features of classes: the rows of a classifier that needs no training."""

from __future__ import annotations

from torch import Tensor, nn

from risegrad.continual.vision.classifier_heads import class_means
from risegrad.continual.vision.vision_kit import Kit


def prototypes(kit: Kit, task: int, adapters: nn.ModuleList | None, key: str | None) -> Tensor:
    """The mean feature of every class of a task, under the test view.

    ``key`` names a frozen extractor whose features may be kept (see ``Kit.kept_features``).
    """
    if key is None:
        found, labels = kit.features_of(task, "train", adapters)
    else:
        found, labels = kit.kept_features(key, task, "train", adapters)
    count = len(kit.stream[task].classes)
    sums, counts = class_means(found, labels, kit.first_class(task), count)
    sums, counts = kit.devices.total(sums), kit.devices.total(counts)
    return sums / counts.clamp(min=1).unsqueeze(1)
