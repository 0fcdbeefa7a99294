"""Images with labels, loaded one at a time: what every source gives; and what a model sees of them.

A view of training is random: a pure function of the image, a seed and the image's index. Its random
numbers come from a small generator of its own, so batches, workers and their order do not matter
and the global random state is left alone. Views of testing are fixed. Resizing is torch's own on
uint8, as in torchvision's transforms.
"""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from risegrad.common.imports import need
from riselab.continual.batches import Indices, chosen, share

Labels = NDArray[np.int64]


class BrokenImage(RuntimeError):
    """An image that cannot be decoded."""


class Images(ABC):
    """Labelled images of one split. ``labels`` are the source's own class ids, ``0..C-1``."""

    in_memory: bool = False
    """Whether nothing has to be decoded."""

    def __init__(self, labels: NDArray[Any], class_names: Sequence[str]) -> None:
        self.labels: Labels = np.asarray(labels).astype(np.int64)
        self.class_names = tuple(class_names)
        if len(self) and not 0 <= self.labels.min() <= self.labels.max() < len(self.class_names):
            raise ValueError(
                f"labels must be class ids within 0..{len(self.class_names) - 1}, "
                f"got {self.labels.min()}..{self.labels.max()}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def load(self, index: int) -> Tensor:
        """The image as a uint8 tensor ``[3, H, W]``; ``BrokenImage`` if it cannot be decoded."""

    @abstractmethod
    def where(self, index: int) -> str:
        """The image's name for people who look for it: its file, or its place."""


@final
class PixelImages(Images):
    """Images of one size that are in memory: a uint8 array ``[N, H, W, 3]`` or ``[N, H, W]``."""

    in_memory = True

    def __init__(
        self, pixels: NDArray[np.uint8], labels: NDArray[Any], class_names: Sequence[str]
    ) -> None:
        super().__init__(labels, class_names)
        gray = pixels.ndim == 3
        tensor = torch.from_numpy(pixels)
        self._pixels = tensor.unsqueeze(1) if gray else tensor.permute(0, 3, 1, 2)

    def load(self, index: int) -> Tensor:
        return self._pixels[index].expand(3, -1, -1)

    def where(self, index: int) -> str:
        return f"image {index}"


@final
class FileImages(Images):
    """Image files, decoded when they are asked for."""

    def __init__(
        self, root: Path, files: Sequence[str], labels: NDArray[Any], class_names: Sequence[str]
    ) -> None:
        super().__init__(labels, class_names)
        self._root, self._files = root, tuple(files)

    def load(self, index: int) -> Tensor:
        return decode(self._root / self._files[index], self.where(index))

    def where(self, index: int) -> str:
        return str(self._root / self._files[index])


Change = Callable[[Tensor], Tensor]
"""From a uint8 image ``[3, H, W]`` to another one of the same size."""


@final
class OtherImages(Images):
    """Images of another source: some of them, under other class names, or each of them changed."""

    def __init__(
        self, whole: Images, indices: Indices | None = None, *,
        class_names: Sequence[str] | None = None, change: Change | None = None,
    ) -> None:  # fmt: skip
        names = whole.class_names if class_names is None else tuple(class_names)
        places = np.array([names.index(name) for name in whole.class_names], dtype=np.int64)
        self._indices = np.arange(len(whole)) if indices is None else indices
        super().__init__(places[whole.labels[self._indices]], names)
        self.in_memory = whole.in_memory
        self._whole, self._change = whole, change
        self._changed: dict[int, Tensor] = {}

    def load(self, index: int) -> Tensor:
        if index in self._changed:
            return self._changed[index]
        found = self._whole.load(int(self._indices[index]))
        if self._change is not None:
            found = self._change(found)
            if self.in_memory:
                self._changed[index] = found
        return found

    def where(self, index: int) -> str:
        return self._whole.where(int(self._indices[index]))


@dataclass(frozen=True)
class ImageSource:
    """The two splits of a dataset, and what a reader of the record has to know about them."""

    train: Images
    test: Images
    notes: tuple[str, ...] = field(default=())


def decode(file: Path | bytes, where: str) -> Tensor:
    """The pixels of an encoded image as uint8 ``[3, H, W]``; gray and palettes become RGB."""
    pillow = need("PIL.Image", "vision")
    try:
        with pillow.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
            pixels = np.array(image.convert("RGB"))
    except Exception as error:  # decoders raise whatever the broken bytes led them to
        raise BrokenImage(
            f"cannot decode {where} ({type(error).__name__}: {error}): replace or remove it"
        ) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


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
        return self.images([index], train=train, seed=seed)[0]

    def images(self, indices: Iterable[int] | Tensor, train: bool, seed: int = 0) -> Tensor:
        """Images as float ``[B, 3, S, S]``.

        Each image is the same as that of ``image`` with its seed, whatever else is in the batch.
        """
        places = indices.tolist() if isinstance(indices, Tensor) else [int(i) for i in indices]
        if not places:
            return torch.empty(0, 3, self._view.image_size, self._view.image_size)
        loaded = [self._images.load(int(self._indices[place])) for place in places]
        if not train:
            return self._view.test(loaded)
        # A negative index means the same image as its positive one, so the same view.
        keys = [f"{seed}/{place % len(self)}" for place in places]
        return self._view.train(loaded, keys)

    def where(self, index: int) -> str:
        """The file of an image, or its place in the source."""
        return self._images.where(int(self._indices[index]))


PUBLISHED_SEED = 1993
"""The seed of the class order in PILOT, in the methods compared there, and in the paper."""


def class_order(count: int, seed: int = PUBLISHED_SEED) -> NDArray[np.int64]:
    """The classes ``0..count-1`` in the published order.

    The same numbers as ``numpy.random.seed(seed); numpy.random.permutation(count)``, which is what
    PILOT does, but the global random state is left alone.

    >>> class_order(100)[:5].tolist()
    [68, 56, 78, 8, 23]
    """
    return np.random.RandomState(seed).permutation(count).astype(np.int64)


def sessions(count: int, base: int, increment: int) -> list[range]:
    """The positions of the classes of every session.

    The first session has ``base`` classes, or ``increment`` where ``base`` is 0; every later one
    has ``increment``; the last one has what is left, which may be fewer.

    >>> sessions(10, base=0, increment=4)
    [range(0, 4), range(4, 8), range(8, 10)]
    """
    if count < 1:
        raise ValueError(f"count must be at least 1 class, got {count}")
    if not 0 <= base <= count:
        raise ValueError(f"base must be within 0..{count}, the number of classes, got {base}")
    if not 1 <= increment <= count:
        raise ValueError(
            f"increment must be within 1..{count}, the number of classes, got {increment}"
        )
    starts = [0, *range(base or increment, count, increment)]
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], count], strict=True)]


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
    return ImageSource(OtherImages(images, train), OtherImages(images, test), (note,))


SCALE = (0.05, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10

MEAN_AND_DEVIATION = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}

Box = tuple[int, int, int, int]
"""Top, left, height, width."""


@dataclass(frozen=True)
class View:
    """How images are shown; the fields are those of ``ImageStreamSettings``."""

    image_size: int
    augment: str
    test_view: str
    resize_ratio: float
    normalize: str

    def train(self, images: Sequence[Tensor], keys: Sequence[str]) -> Tensor:
        """Training views ``[B, 3, S, S]`` of uint8 images; each depends on its own key only."""
        if self.augment == "none":
            return self.test(images)
        randoms = [Random(key) for key in keys]
        flips = [number for number, random in enumerate(randoms) if random.random() < 0.5]
        if self.augment == "flip":
            pixels = self._fixed(images)
        else:
            crops = zip(images, randoms, strict=True)
            pixels = torch.cat([self._random_crop(image, random) for image, random in crops])
        for number in flips:  # one by one in place is far quicker than a choice over the batch
            pixels[number] = pixels[number].flip(2)
        return self._values(pixels)

    def test(self, images: Sequence[Tensor]) -> Tensor:
        """Test views ``[B, 3, S, S]`` of uint8 images."""
        return self._values(self._fixed(images))

    def _fixed(self, images: Sequence[Tensor]) -> Tensor:
        if len({image.shape for image in images}) == 1:
            return self._middle(torch.stack(list(images)))  # one size: all at once
        return torch.cat([self._middle(image[None]) for image in images])

    def _middle(self, batch: Tensor) -> Tensor:
        size = self.image_size
        if self.test_view == "direct":
            return resize(batch, size, size, "bicubic")
        height, width = batch.shape[2:]
        short, target = min(height, width), round(size * self.resize_ratio)
        # As torchvision: the longer side is rounded down, the crop's corner to the nearest.
        height, width = int(target * height / short), int(target * width / short)
        top, left = round((height - size) / 2), round((width - size) / 2)
        resized = resize(batch, height, width, "bicubic")
        return resized[:, :, top : top + size, left : left + size]

    def _random_crop(self, image: Tensor, random: Random) -> Tensor:
        top, left, height, width = crop_box(image.shape[1], image.shape[2], random)
        crop = image[None, :, top : top + height, left : left + width]
        return resize(crop, self.image_size, self.image_size, "bilinear")

    def _values(self, pixels: Tensor) -> Tensor:
        values = pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        if self.normalize == "none":
            return values
        mean, deviation = torch.tensor(MEAN_AND_DEVIATION[self.normalize])[..., None, None]
        return values.sub_(mean).div_(deviation)


def resize(batch: Tensor, height: int, width: int, mode: str) -> Tensor:
    """uint8 ``[B, 3, H, W]`` to the given size, smoothed where it shrinks."""
    if batch.shape[2:] == (height, width):
        return batch
    # Channels last is the layout of torch's vectorized code, three times as fast as the other one.
    batch = batch.contiguous(memory_format=torch.channels_last)
    return interpolate(batch, (height, width), mode=mode, antialias=True)


def crop_box(height: int, width: int, random: Random) -> Box:
    """A random part of an image, drawn as torchvision's ``RandomResizedCrop`` draws it.

    Its area is uniform in ``SCALE`` and its ratio log-uniform in ``RATIO``. After ten boxes that do
    not fit into the image it is the middle, as much as ``RATIO`` allows.
    """
    for _ in range(ATTEMPTS):
        area = height * width * random.uniform(*SCALE)
        ratio = math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    h = min(height, round(width / RATIO[0]))
    w = min(width, round(height * RATIO[1]))
    return (height - h) // 2, (width - w) // 2, h, w
