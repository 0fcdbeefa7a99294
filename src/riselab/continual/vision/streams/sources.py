"""Sources of images: an ``.npz`` file, scikit-learn's digits, CIFAR-100, folders, sessions."""

from __future__ import annotations

import fcntl
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from risegrad.common.imports import need
from riselab.continual.vision.streams.images import (
    FileImages,
    ImageSource,
    OtherImages,
    PixelImages,
    hold_out,
)

KEYS = ("train_images", "train_labels", "test_images", "test_labels")


def npz(file: Path) -> ImageSource:
    """An ``.npz`` with ``train_images``, ``train_labels``, ``test_images``, ``test_labels``.

    Images are uint8 ``[N, H, W, 3]``, ``[N, H, W, 1]`` or ``[N, H, W]``, labels integers from 0 on;
    ``class_names``, an array of strings, may be there too.
    """
    if not file.is_file():
        raise FileNotFoundError(
            f"no .npz at {file.resolve()}: write one with numpy.savez(file, {', '.join(KEYS)}) "
            "and give its path as data"
        )
    try:
        with np.load(file, allow_pickle=False) as content:
            found = {key: content[key] for key in content.files}
    except (ValueError, TypeError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} must be an .npz of plain arrays, got {error}") from error
    if missing := [key for key in KEYS if key not in found]:
        raise ValueError(
            f"{file} must have the keys {', '.join(KEYS)}; {', '.join(missing)} not found, "
            f"got {', '.join(found)}"
        )
    images, labels = found["train_images"], found["train_labels"]
    names = found.get("class_names")
    # Without names the largest label decides how many there are: it must not be huge by mistake.
    count = len(images) if names is None else names.size
    for part in ("train", "test"):
        _check(file, part, found[f"{part}_images"], found[f"{part}_labels"], count)
    listed = range(int(labels.max()) + 1) if names is None else names.reshape(-1)
    train, test = (
        PixelImages(_pixels(found[f"{p}_images"]), found[f"{p}_labels"], [str(n) for n in listed])
        for p in ("train", "test")
    )
    return ImageSource(train, test)


def _check(file: Path, part: str, images: NDArray[Any], labels: NDArray[Any], count: int) -> None:
    if images.dtype != np.uint8 or images.shape[3:] not in ((), (1,), (3,)) or images.ndim < 3:
        raise ValueError(
            f"{part}_images of {file} must be uint8 [N, H, W], [N, H, W, 1] or [N, H, W, 3], "
            f"got {images.dtype} {list(images.shape)}"
        )
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1] or not len(labels):
        raise ValueError(
            f"{part}_labels of {file} must be integers, one for each of {len(images)} images "
            f"and at least one, got {labels.dtype} {list(labels.shape)}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= count:
        raise ValueError(
            f"{part}_labels of {file} must be class ids within 0..{count - 1} (as many classes as "
            f"class_names, or as training images at most), got {low}..{high}"
        )


def _pixels(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return images[..., 0] if images.shape[3:] == (1,) else images


def digits(test_fraction: float) -> ImageSource:
    """scikit-learn's 1797 handwritten digits, 8 x 8, gray; part of the package, no download."""
    data = need("sklearn.datasets", "lab").load_digits()
    pixels = np.round(data.images * (255 / 16)).astype(np.uint8)
    return hold_out(PixelImages(pixels, data.target, [str(n) for n in range(10)]), test_fraction)


def cifar100(root: Path, download: bool) -> ImageSource:
    """torchvision's CIFAR-100, in ``root/cifar-100-python``; of several processes that want it one
    downloads and the others wait."""
    CIFAR100 = need("torchvision.datasets", "vision").CIFAR100
    try:
        with _alone(root) if download else nullcontext():
            train, test = (CIFAR100(str(root), train=p, download=download) for p in (True, False))
    except (RuntimeError, OSError) as error:  # not there, or the download failed
        raise FileNotFoundError(
            f"CIFAR-100 is not complete in {(root / CIFAR100.base_folder).resolve()} ({error}): "
            f"--set stream.download=true gets it, or unpack {CIFAR100.url} in {root.resolve()}, "
            "or give the folder that has it as stream.data"
        ) from error
    pixels = [
        PixelImages(part.data, np.array(part.targets), part.classes) for part in (train, test)
    ]
    return ImageSource(pixels[0], pixels[1])


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """The only process that downloads there; where nothing can be written, nothing is awaited."""
    with ExitStack() as held:
        with suppress(OSError):
            root.mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context((root / ".download").open("w")), fcntl.LOCK_EX)
        yield


SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")
LONGEST_LABEL = 9  # digits
DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def folder(root: Path, test_fraction: float) -> ImageSource:
    """``root/train/CLASS/*`` and ``root/test/CLASS/*``, or ``root/CLASS/*`` and a fixed split.

    Class ids are the alphabetical places of the training folders.
    """
    split = (root / "train").is_dir()
    top = root / "train" if split else root
    names = _folders(top) if top.is_dir() else []
    if not names:
        raise FileNotFoundError(
            f"no image folders in {root.resolve()}: it must have train/CLASS/* and test/CLASS/*, "
            "or CLASS/* for a fixed split; unpack the dataset there, or give its folder as data"
        )
    train = _by_folder(top, names)
    if not split:
        return hold_out(train, test_fraction)
    if not (root / "test").is_dir():
        raise FileNotFoundError(
            f"{root.resolve()} has a train folder but no test folder: add test/CLASS/*, "
            "or give the train folder itself as data for a fixed split"
        )
    if unknown := sorted(set(_folders(root / "test")) - set(names)):
        raise ValueError(
            f"every class of {root / 'test'} must be one of {root / 'train'}, "
            f"got {', '.join(unknown)} in test only"
        )
    return ImageSource(train, _by_folder(root / "test", names))


def domainnet(root: Path) -> ImageSource:
    """The six domains of DomainNet pooled, split by ``<domain>_train.txt`` and ``_test.txt``.

    A line of a list is ``path label``, the path from ``root`` on: ``clipart/zebra/x.jpg 343``.
    """
    needed = [f"{domain}_{part}.txt" for domain in DOMAINS for part in ("train", "test")]
    missing = [name for name in needed if not (root / name).is_file()]
    missing += [f"{domain}/" for domain in DOMAINS if not (root / domain).is_dir()]
    if missing:
        raise FileNotFoundError(
            f"DomainNet is not complete in {root.resolve()}: {', '.join(missing)} not found; "
            "get the six archives (the cleaned version) and their train and test lists from "
            "http://ai.bu.edu/M3SDA/, unpack them there, or give the folder that has them as data"
        )
    lines = {
        part: [line for domain in DOMAINS for line in _lines(root / f"{domain}_{part}.txt")]
        for part in ("train", "test")
    }
    names = _list_names([line for part in lines.values() for line in part])
    train, test = (
        FileImages(root, [path for path, _ in part], np.array([n for _, n in part]), names)
        for part in lines.values()
    )
    return ImageSource(train, test)


def _folders(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _by_folder(root: Path, names: list[str]) -> FileImages:
    files = [
        (f"{name}/{file}", number)
        for number, name in enumerate(names)
        if (root / name).is_dir()
        for file in sorted(os.listdir(root / name))
        if file.lower().endswith(SUFFIXES) and not file.startswith(".")
    ]
    if not files:
        raise FileNotFoundError(
            f"no images in the class folders of {root.resolve()}: files must end in "
            f"{', '.join(SUFFIXES)}"
        )
    return FileImages(root, [file for file, _ in files], np.array([n for _, n in files]), names)


def _lines(file: Path) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        path, _, label = line.strip().rpartition(" ")
        if path and label.isdecimal() and len(label) <= LONGEST_LABEL:
            yield path, int(label)
        elif line.strip():
            raise ValueError(f"line {number} of {file} must be 'path label', got {line!r}")


def _list_names(lines: list[tuple[str, int]]) -> list[str]:
    """The classes by their folders; the same label must mean the same folder in every domain."""
    names: dict[int, str] = {}
    for path, label in lines:
        name = Path(path).parent.name
        if names.setdefault(label, name) != name:
            raise ValueError(
                f"label {label} must mean one class in all lists, got {names[label]} and {name}"
            )
    if (last := max(names, default=-1)) >= len(lines):
        raise ValueError(
            f"labels must be class ids within 0..{len(lines) - 1} ({len(lines)} images are of "
            f"{len(lines)} classes at most), got {last} for {names[last]}"
        )
    return [names.get(label, str(label)) for label in range(last + 1)]


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
            OtherImages(one.train, class_names=names),
            OtherImages(one.test, class_names=names),
            one.notes,
        )
        for name, one in found.items()
    }


def _opened(entry: Path, test_fraction: float) -> ImageSource:
    return folder(entry, test_fraction) if entry.is_dir() else npz(entry)
