"""Which images of a class go where, by a seed of its own: the same for every class order."""

from __future__ import annotations

import numpy as np

from risegrad.continual.example_picks import Indices, chosen, share
from risegrad.continual.vision.streams.images import Images, ImageSource, SomeImages

HOLDOUT_SEED = 0
"""The test images of a source without a split are always the same ones."""


def by_class(labels: Indices, count: int) -> list[Indices]:
    """The indices of the images of every class, ascending."""
    ordered = np.argsort(labels, kind="stable")
    return np.split(ordered, np.searchsorted(labels[ordered], np.arange(1, count)))


def hold_out(images: Images, fraction: float) -> ImageSource:
    """Training and test images from a source that has one split only, class by class."""
    parts = [
        chosen(indices, share(len(indices), fraction), HOLDOUT_SEED, number)
        for number, indices in enumerate(by_class(images.labels, len(images.class_names)))
    ]
    test, train = (np.sort(np.concatenate(part)) for part in zip(*parts, strict=True))
    note = f"no test split in the source: {fraction:g} of every class held out by a fixed seed"
    return ImageSource(SomeImages(images, train), SomeImages(images, test), (note,))
