"""Sources that are image files: a folder per class, and DomainNet's official lists."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from risegrad.continual.vision.streams.image_picks import hold_out
from risegrad.continual.vision.streams.images import FileImages, ImageSource

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
    last = max(names, default=-1)
    if last >= len(lines):
        raise ValueError(
            f"labels must be class ids within 0..{len(lines) - 1} ({len(lines)} images are of "
            f"{len(lines)} classes at most), got {last} for {names[last]}"
        )
    return [names.get(label, str(label)) for label in range(last + 1)]
