"""Which images of a class go where: choices by a seed of their own, the same for every class order.

They use numpy's legacy generator because numpy keeps its numbers the same in all versions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from risegrad.continual.vision.streams.images import Images, ImageSource, SomeImages

Indices = NDArray[np.int64]

HOLDOUT_SEED = 0
"""The test images of a source without a split are always the same ones."""


def by_class(labels: Indices, count: int) -> list[Indices]:
    """The indices of the images of every class, ascending."""
    ordered = np.argsort(labels, kind="stable")
    return np.split(ordered, np.searchsorted(labels[ordered], np.arange(1, count)))


def chosen(indices: Indices, number: int | None, *key: int) -> tuple[Indices, Indices]:
    """``number`` of the indices (None: all) chosen by the key, and the others; both ascending."""
    shuffled = np.random.RandomState(key).permutation(indices)
    cut = len(indices) if number is None else number
    return np.sort(shuffled[:cut]), np.sort(shuffled[cut:])


def share(total: int, fraction: float) -> int:
    """``fraction`` of the images, at least one if any is wanted, but never all of them.

    >>> share(10, 0.0), share(10, 0.25), share(10, 0.01), share(2, 0.9), share(1, 0.5)
    (0, 2, 1, 1, 0)
    """
    return min(total - 1, max(1, round(total * fraction))) if fraction and total else 0


def hold_out(images: Images, fraction: float) -> ImageSource:
    """Training and test images from a source that has one split only, class by class."""
    parts = [
        chosen(indices, share(len(indices), fraction), HOLDOUT_SEED, number)
        for number, indices in enumerate(by_class(images.labels, len(images.class_names)))
    ]
    test, train = (np.sort(np.concatenate(part)) for part in zip(*parts, strict=True))
    note = f"no test split in the source: {fraction:g} of every class held out by a fixed seed"
    return ImageSource(SomeImages(images, train), SomeImages(images, test), (note,))
