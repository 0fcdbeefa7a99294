"""Sources that are in memory: an ``.npz`` file, scikit-learn's digits, torchvision's CIFAR-100."""

from __future__ import annotations

import fcntl
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from risegrad.common.optional_imports import need
from risegrad.continual.vision.streams.image_picks import hold_out
from risegrad.continual.vision.streams.images import ImageSource, PixelImages

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
    content = _read(file)
    if missing := [key for key in KEYS if key not in content]:
        raise ValueError(
            f"{file} must have the keys {', '.join(KEYS)}; {', '.join(missing)} not found, "
            f"got {', '.join(content)}"
        )
    for part in ("train", "test"):
        _check(file, part, content[f"{part}_images"], content[f"{part}_labels"])
    names = _class_names(file, content)
    _check_ids(file, "test", content, len(names), f"there are {len(names)} classes")
    train, test = (
        PixelImages(_pixels(content[f"{part}_images"]), content[f"{part}_labels"], names)
        for part in ("train", "test")
    )
    return ImageSource(train, test)


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
            f"set download = true, or unpack {CIFAR100.url} in {root.resolve()}, "
            "or give the folder that has it as data"
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


def _read(file: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(file, allow_pickle=False) as content:
            return {key: content[key] for key in content.files}
    except (ValueError, TypeError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} must be an .npz of plain arrays, got {error}") from error


def _check(file: Path, part: str, images: NDArray[Any], labels: NDArray[Any]) -> None:
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


def _class_names(file: Path, content: Mapping[str, NDArray[Any]]) -> list[str]:
    """Those given, or numbers; nothing is made from a label before it is known to be small."""
    given, images = content.get("class_names"), len(content["train_labels"])
    if given is None:
        _check_ids(
            file, "train", content, images, f"{images} images are of {images} classes at most"
        )
        return [str(number) for number in range(int(content["train_labels"].max()) + 1)]
    if given.ndim != 1:
        raise ValueError(f"class_names of {file} must be a list, got {list(given.shape)}")
    _check_ids(file, "train", content, len(given), f"there are {len(given)} class_names")
    return [str(name) for name in given]


def _check_ids(
    file: Path, part: str, content: Mapping[str, NDArray[Any]], count: int, reason: str
) -> None:
    labels = content[f"{part}_labels"]
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= count:
        raise ValueError(
            f"{part}_labels of {file} must be class ids within 0..{count - 1} ({reason}), "
            f"got {low}..{high}"
        )


def _pixels(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return images[..., 0] if images.shape[3:] == (1,) else images
