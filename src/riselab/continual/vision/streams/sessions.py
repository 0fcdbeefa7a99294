"""A stream from a folder: every entry is one session, an ``.npz`` file or a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import final

import numpy as np
from torch import Tensor

from riselab.continual.vision.streams.images import Images, ImageSource
from riselab.continual.vision.streams.sources import folder, npz


@final
class RenumberedImages(Images):
    """Other images whose classes have other numbers, because there are more of them."""

    def __init__(self, whole: Images, class_names: tuple[str, ...]) -> None:
        places = np.array([class_names.index(name) for name in whole.class_names], dtype=np.int64)
        super().__init__(places[whole.labels], class_names)
        self.encoded = whole.encoded
        self._whole = whole

    def load(self, index: int) -> Tensor:
        return self._whole.load(index)

    def name(self, index: int) -> str:
        return self._whole.name(index)

    def where(self, index: int) -> str:
        return self._whole.where(index)


def image_sessions(root: Path, test_fraction: float) -> dict[str, ImageSource]:
    """By the names of the entries, which are also their order; all have the classes of all.

    Classes of one name are one class; an ``.npz`` without ``class_names`` has "0", "1", ...
    """
    entries = sorted(e for e in root.iterdir() if e.name[0] != ".") if root.is_dir() else []
    found = {e.stem: _opened(e, test_fraction) for e in entries if e.is_dir() or e.suffix == ".npz"}
    if not found:
        raise FileNotFoundError(
            f"no sessions in {root.resolve()}: it must have one .npz file or folder of images for "
            "each session, in the order of their names"
        )
    names = tuple(dict.fromkeys(n for one in found.values() for n in one.train.class_names))
    return {
        name: ImageSource(
            RenumberedImages(one.train, names), RenumberedImages(one.test, names), one.notes
        )
        for name, one in found.items()
    }


def _opened(entry: Path, test_fraction: float) -> ImageSource:
    return folder(entry, test_fraction) if entry.is_dir() else npz(entry)
