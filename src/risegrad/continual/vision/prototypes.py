"""Mean features of classes: the rows of a classifier that needs no training."""

from __future__ import annotations

from torch import Tensor, nn

from risegrad.continual.devices import Devices
from risegrad.continual.vision.classifier_heads import class_means, cosine
from risegrad.continual.vision.vision_kit import Kit

NEAR = 0.3
"""How far, on the unit sphere, an image may be from a mean and still tell how that one moved."""


def prototypes(kit: Kit, task: int, adapters: nn.ModuleList | None, key: str | None) -> Tensor:
    """The mean feature of every class of a task, under the test view.

    ``key`` names a frozen extractor whose features may be kept (see ``Kit.kept_features``).
    """
    if key is None:
        found, labels = kit.features_of(task, "train", adapters)
    else:
        found, labels = kit.kept_features(key, task, "train", adapters)
    return means_of(kit, task, found, labels)


def means_of(kit: Kit, task: int, found: Tensor, labels: Tensor) -> Tensor:
    """The mean of every class of a task, of this process's features and those of the others."""
    count = len(kit.stream[task].classes)
    sums, counts = class_means(found, labels, kit.first_class(task), count)
    sums, counts = kit.devices.total(sums), kit.devices.total(counts)
    return sums / counts.clamp(min=1).unsqueeze(1)


def followed(means: Tensor, before: Tensor, after: Tensor, devices: Devices) -> Tensor:
    """Class means moved as the features of other images near them moved.

    Semantic drift compensation (Yu et al. 2020): images of an old class are gone, but those of the
    new ones were seen by the old features and by the new, and what is near moves alike.
    ``before`` and ``after`` are features of the same images, this process's part of them.
    """
    weights = ((cosine(means, before) - 1) / NEAR**2).exp()
    moved = devices.total(weights @ (after - before))
    return means + moved / devices.total(weights.sum(1, keepdim=True)).clamp(min=1e-30)
