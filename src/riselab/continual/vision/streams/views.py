"""What the model sees of an image: the random view of training and the fixed view of testing.

A training view is a pure function of the image, a seed and the image's index. Its random numbers
come from a small generator of its own, so batches, workers and their order do not matter and the
global random state is left alone. Resizing is torch's own on uint8, as in torchvision's transforms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor
from torch.nn.functional import interpolate

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
