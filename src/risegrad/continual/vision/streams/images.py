"""Images with labels, loaded one at a time: what every source gives."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from risegrad.common.optional_imports import need

Labels = NDArray[np.int64]


class BrokenImage(RuntimeError):
    """An image that cannot be decoded."""


class Images(ABC):
    """Labelled images of one split. ``labels`` are the source's own class ids, ``0..C-1``."""

    encoded: bool = True
    """Whether loading decodes something, and so may fail."""

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
    def name(self, index: int) -> str:
        """The image's name below its data, for records: they hold no folders of a machine."""

    def where(self, index: int) -> str:
        """The image's name for people who look for it: its file, or its place."""
        return self.name(index)


@final
class PixelImages(Images):
    """Images of one size that are in memory: a uint8 array ``[N, H, W, 3]`` or ``[N, H, W]``."""

    encoded = False

    def __init__(
        self, pixels: NDArray[np.uint8], labels: NDArray[Any], class_names: Sequence[str]
    ) -> None:
        super().__init__(labels, class_names)
        gray = pixels.ndim == 3
        tensor = torch.from_numpy(pixels)
        self._pixels = tensor.unsqueeze(1) if gray else tensor.permute(0, 3, 1, 2)

    def load(self, index: int) -> Tensor:
        return self._pixels[index].expand(3, -1, -1)

    def name(self, index: int) -> str:
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

    def name(self, index: int) -> str:
        return self._files[index]

    def where(self, index: int) -> str:
        return str(self._root / self._files[index])


@final
class SomeImages(Images):
    """A part of other images, by their indices."""

    def __init__(self, whole: Images, indices: NDArray[np.int64]) -> None:
        super().__init__(whole.labels[indices], whole.class_names)
        self.encoded = whole.encoded
        self._whole, self._indices = whole, indices

    def load(self, index: int) -> Tensor:
        return self._whole.load(int(self._indices[index]))

    def name(self, index: int) -> str:
        return self._whole.name(int(self._indices[index]))

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
            f"cannot decode {where} ({type(error).__name__}: {error}); "
            'replace it, or leave broken images out with on_broken="skip"'
        ) from error
    return torch.from_numpy(pixels).permute(2, 0, 1)
