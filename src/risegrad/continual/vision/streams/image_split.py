"""The images of one session for one purpose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from risegrad.continual.vision.streams.image_views import View
from risegrad.continual.vision.streams.images import Images


class ImageSplit:
    """Some images of a source, with labels that are positions in the class order.

    It holds indices only and shares the images with the other splits; it can be sent to the workers
    of a ``DataLoader``.
    """

    labels: Tensor
    """The position of each image's class in the class order, int64."""

    def __init__(
        self, images: Images, indices: NDArray[np.int64], labels: Tensor, view: View
    ) -> None:
        self.labels = labels
        self._images, self._indices, self._view = images, indices, view

    def __len__(self) -> int:
        return len(self._indices)

    def image(self, index: int, *, train: bool, seed: int = 0) -> Tensor:
        """One image as float ``[3, S, S]``: the training view drawn by (seed, index), or the test
        view, which takes no seed."""
        return self.images([index], train=train, seeds=seed)[0]

    def images(
        self, indices: Iterable[int] | Tensor, train: bool, seeds: int | Sequence[int] = 0
    ) -> Tensor:
        """Images as float ``[B, 3, S, S]``; ``seeds`` is one seed for all or one for each.

        Each image is the same as that of ``image`` with its seed, whatever else is in the batch.
        """
        places = indices.tolist() if isinstance(indices, Tensor) else [int(i) for i in indices]
        if not places:
            return torch.empty(0, 3, self._view.image_size, self._view.image_size)
        loaded = [self._images.load(int(self._indices[place])) for place in places]
        if not train:
            return self._view.test(loaded)
        each = [seeds] * len(places) if isinstance(seeds, int) else seeds
        if len(each) != len(places):
            raise ValueError(
                f"seeds must be one or one for each of {len(places)} images, got {len(each)}"
            )
        # A negative index means the same image as its positive one, so the same view.
        keys = [f"{s}/{p % len(self)}" for s, p in zip(each, places, strict=True)]
        return self._view.train(loaded, keys)

    def where(self, index: int) -> str:
        """The file of an image, or its place in the source."""
        return self._images.where(int(self._indices[index]))
