"""The same images in another domain: turned, with their pixels in another order, or noisy.

A variant is a function of the image, its number and the settings alone, so that every run, worker
and epoch sees the same images. It is made before anything that a view does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from risegrad.common.seeds import generator_for
from risegrad.continual.vision.streams.images import Images

Change = Callable[[Tensor, int], Tensor]
"""From a uint8 image ``[3, H, W]`` and its number to another one of the same size."""


@final
class ChangedImages(Images):
    """Other images, each changed when it is asked for; those in memory are changed once."""

    def __init__(self, whole: Images, change: Change) -> None:
        super().__init__(whole.labels, whole.class_names)
        self.encoded = whole.encoded
        self._whole, self._change = whole, change
        self._done: dict[int, Tensor] = {}

    def load(self, index: int) -> Tensor:
        if index in self._done:
            return self._done[index]
        found = self._change(self._whole.load(index), index)
        if not self.encoded:
            self._done[index] = found
        return found

    def name(self, index: int) -> str:
        return self._whole.name(index)

    def where(self, index: int) -> str:
        return self._whole.where(index)


def domain_change(setting: str, value: int, seed: int) -> Change | None:
    """What makes one domain, by the setting that lists it; None leaves the images as they are."""
    return DomainChange(setting, value, seed) if value else None


@dataclass(frozen=True)
class DomainChange:
    """One domain; an object and no function within one, so that worker processes can have it."""

    setting: str
    value: int
    seed: int

    def __call__(self, image: Tensor, number: int) -> Tensor:
        match self.setting:
            case "turns":
                return turned(image, self.value)
            case "permutations":
                return permuted(image, self.value)
            case _:
                return noisy(image, self.value, self.seed, number)


def turned(image: Tensor, degrees: float) -> Tensor:
    """Counter-clockwise about the centre, bilinear; what comes from outside is black.

    The size stays, so the corners of what turns out of it are lost.
    """
    height, width = image.shape[1:]
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # Places run from -1 to 1 whatever the sides are, so a side that is longer counts for more.
    place = torch.tensor([[[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]]])
    grid = affine_grid(place, [1, *image.shape], align_corners=False)
    found = grid_sample(image[None].float(), grid, mode="bilinear", align_corners=False)
    return found[0].round().clamp(0, 255).to(torch.uint8)


def permuted(image: Tensor, seed: int) -> Tensor:
    """The pixels in another order, the same one for all images of a size."""
    height, width = image.shape[1:]
    order = _order(seed, height * width)
    return image.reshape(image.shape[0], -1)[:, order].reshape(image.shape)


@lru_cache(maxsize=64)
def _order(seed: int, count: int) -> Tensor:
    return torch.randperm(count, generator=generator_for(seed, "permuted pixels", count))


def noisy(image: Tensor, deviation: float, seed: int, number: int) -> Tensor:
    """With Gaussian noise of this deviation in gray levels (of 255), of each image its own."""
    generator = generator_for(seed, "noisy pixels", number)
    # One draw for all channels: a gray image stays gray.
    noise = torch.randn(1, *image.shape[1:], generator=generator)
    return (image.float() + deviation * noise).round().clamp(0, 255).to(torch.uint8)
