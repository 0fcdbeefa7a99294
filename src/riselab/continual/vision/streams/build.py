"""From settings to a stream: open the source, order the classes, cut the sessions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import torch

from risegrad.common.imports import need
from riselab.common.inputs import Hub, Known, Local, Reading
from riselab.continual.batches import Indices, chosen, share
from riselab.continual.host import Stream, Task
from riselab.continual.preflight import too_few, untested
from riselab.continual.vision.streams.hub import hub
from riselab.continual.vision.streams.images import (
    BrokenImage,
    Images,
    ImageSource,
    ImageSplit,
    View,
    by_class,
    class_order,
    sessions,
)
from riselab.continual.vision.streams.settings import (
    VARIANTS,
    ImageStreamSettings,
    OwnImageStream,
    departures,
)
from riselab.continual.vision.streams.sources import (
    DOMAINS,
    Change,
    ChangedImages,
    cifar100,
    digits,
    domain_change,
    domainnet,
    folder,
    image_sessions,
    npz,
)


def build_stream(settings: ImageStreamSettings) -> Stream[ImageSplit]:
    """The stream that the settings describe: of classes, or of domains.

    >>> stream = build_stream(ImageStreamSettings(source="digits", increment=5))
    >>> [task.classes for task in stream]
    [('4', '2', '7', '6', '0'), ('3', '5', '8', '9', '1')]
    """
    if settings.source == "sessions":
        return _of_sessions(settings)
    if isinstance(settings, OwnImageStream) and (whole := settings.build()) is not None:
        return whole
    source = open_source(settings)
    order = _order(settings, len(source.train.class_names))
    parts = _parts(settings, source, order)
    names = [source.train.class_names[number] for number in order]
    makers = {"classes": _by_classes, "domains": _by_domains}
    tasks, size_notes = makers[settings.kind](settings, source, parts, names)
    _check_tested(tasks)
    notes = (
        *departures(settings),
        *source.notes,
        *size_notes,
        *parts.notes,
        *untested(zip(names, map(len, parts.test), strict=True)),
    )
    return Stream(settings.name, tasks, notes, known=settings.known)


Tasks = tuple[tuple[Task[ImageSplit], ...], tuple[str, ...]]
"""Tasks, and what a reader should know of their sizes."""


def _by_classes(
    settings: ImageStreamSettings, source: ImageSource, parts: _Parts, names: Sequence[str]
) -> Tasks:
    cuts = sessions(len(names), settings.base, settings.increment)
    found = (
        _task(f"session {number}", source, parts, names, cut, _view(settings))
        for number, cut in enumerate(cuts)
    )
    return tuple(found), _note_sizes(cuts, settings.increment)


def _by_domains(
    settings: ImageStreamSettings, source: ImageSource, parts: _Parts, names: Sequence[str]
) -> Tasks:
    """The same images once for every domain; which are for training stays the same."""
    setting, values = settings.domains
    found = []
    for value in values:
        change = domain_change(setting, value, settings.split_seed)
        changed = source if change is None else _changed(source, change)
        name = f"{VARIANTS[setting]} {value}"
        every = range(len(names))
        found.append(_task(name, changed, parts, names, every, _view(settings)))
    return tuple(found), ()


def _of_sessions(settings: ImageStreamSettings) -> Stream[ImageSplit]:
    """Images of its own for every session; classes that one lacks have no images in it."""
    tasks: list[Task[ImageSplit]] = []
    notes: list[str] = []
    for name, source in image_sessions(_place(settings), settings.test_fraction).items():
        names = source.train.class_names
        there = np.unique(source.train.labels)
        parts = _parts(settings, source, there)
        _spread(parts, there, len(names))
        tasks.append(_task(name, source, parts, names, range(len(names)), _view(settings)))
        notes += [*source.notes, *parts.notes]
    _check_tested(tasks)
    return Stream(settings.name, tuple(tasks), tuple(notes), known=settings.known)


def _spread(parts: _Parts, there: Indices, count: int) -> None:
    """A list for each of ``count`` classes, empty for those that are not ``there``."""
    for images in (parts.train, parts.validation, parts.test):
        known = dict(zip(there.tolist(), list(images), strict=True))
        images[:] = [known.get(number, there[:0]) for number in range(count)]


def _changed(source: ImageSource, change: Change) -> ImageSource:
    train, test = (ChangedImages(part, change) for part in (source.train, source.test))
    return ImageSource(train, test)


def _view(settings: ImageStreamSettings) -> View:
    return View(
        settings.image_size,
        settings.augment,
        settings.test_view,
        settings.resize_ratio,
        settings.normalize,
    )


def _task(
    name: str, source: ImageSource, parts: _Parts, names: Sequence[str], cut: range, view: View
) -> Task[ImageSplit]:
    return Task(
        name=name,
        classes=tuple(names[position] for position in cut),
        train=_split(source.train, parts.train, cut, view),
        validation=_split(source.train, parts.validation, cut, view),
        test=_split(source.test, parts.test, cut, view),
    )


def open_source(settings: ImageStreamSettings) -> ImageSource:
    """The images that the settings point at."""
    if isinstance(settings, OwnImageStream):
        return settings.open()
    path = _place(settings)
    match settings.source:
        case "cifar100":
            return cifar100(path, settings.download)
        case "folder":
            return folder(path, settings.test_fraction)
        case "domainnet":
            return domainnet(path)
        case "hub":
            return hub(
                settings.data, settings.image_column, settings.label_column, settings.test_fraction
            )
        case "npz":
            return npz(path)
        case _:
            return digits(settings.test_fraction)


def _place(settings: ImageStreamSettings) -> Path:
    return Path(settings.data).expanduser()


def images_of(settings: ImageStreamSettings) -> Reading | None:
    """What ``open_source`` reads; None where the images come with a library."""
    if isinstance(settings, OwnImageStream):
        return settings.reads()
    match settings.source:
        case "cifar100":  # torchvision refuses files with other checksums
            return Known("CIFAR-100 of torchvision", settings.data)
        case "hub" if not Path(settings.data).expanduser().exists():
            return Hub(settings.data, "dataset")
        case "domainnet":
            lists = (f"{domain}_{part}.txt" for domain in DOMAINS for part in ("train", "test"))
            return Local(settings.data, (*DOMAINS, *lists))
        case "digits":
            return None
        case _:
            return Local(settings.data)


@dataclass(frozen=True)
class _Parts:
    """The images of every used class, in the class order, by purpose."""

    train: list[Indices]
    validation: list[Indices]
    test: list[Indices]
    notes: tuple[str, ...]


def _order(settings: ImageStreamSettings, count: int) -> Indices:
    """The ids of the used classes in the order in which they come."""
    match settings.class_order:
        case "seed":
            order = class_order(count, settings.order_seed)
        case "natural":
            order = np.arange(count)
        case _:
            order = np.array(settings.given_order)
    if len(set(order.tolist())) < len(order) or order.min() < 0 or order.max() >= count:
        raise ValueError(
            f"given_order must be different class ids within 0..{count - 1}, "
            f"got {settings.given_order}"
        )
    if settings.classes > len(order):
        raise ValueError(f"classes must be at most {len(order)} here, got {settings.classes}")
    return order[: settings.classes or None]


def _parts(settings: ImageStreamSettings, source: ImageSource, order: Indices) -> _Parts:
    train_all, train_notes = _usable(source.train, order, settings.on_broken, "training")
    test_all, test_notes = _usable(source.test, order, settings.on_broken, "test")
    notes = (
        *train_notes,
        *test_notes,
        *too_few(
            "train_per_class", settings.train_per_class, _there(source.train, order, train_all)
        ),
        *too_few("test_per_class", settings.test_per_class, _there(source.test, order, test_all)),
    )
    parts = _Parts([], [], [], notes)
    for number in order.tolist():
        if not len(train_all[number]):
            raise ValueError(
                "every class of the stream must have a training image, "
                f"got none for {source.train.class_names[number]!r} (class {number})"
            )
        key = (settings.split_seed, number)
        train, _ = chosen(train_all[number], settings.train_per_class or None, *key, 0)
        validation, train = chosen(train, share(len(train), settings.validation), *key, 1)
        test, _ = chosen(test_all[number], settings.test_per_class or None, *key, 2)
        parts.train.append(train)
        parts.validation.append(validation)
        parts.test.append(test)
    return parts


def _there(images: Images, order: Indices, indices: Sequence[Indices]) -> list[tuple[str, int]]:
    """How many images each used class has; of those without any, another note tells."""
    counts = [(images.class_names[number], len(indices[number])) for number in order]
    return [(name, count) for name, count in counts if count]


def _usable(
    images: Images, order: Indices, on_broken: str, purpose: str
) -> tuple[list[Indices], tuple[str, ...]]:
    """The images of every class without the broken ones, and a note that lists these."""
    indices = by_class(images.labels, len(images.class_names))
    if on_broken == "stop" or not images.encoded:
        return indices, ()
    used = np.sort(np.concatenate([indices[number] for number in order]))
    broken = _broken(images, used, purpose)
    if not broken:
        return indices, ()
    places = "; ".join(images.name(index) for index in broken)
    note = f"{len(broken)} broken {purpose} images left out: {places}"
    return [np.setdiff1d(of_class, broken) for of_class in indices], (note,)


def _broken(images: Images, indices: Indices, purpose: str) -> list[int]:
    """The images that cannot be decoded, found by decoding all of them once."""
    tqdm = need("tqdm", "lab").tqdm

    def fails(index: int) -> bool:
        try:
            images.load(index)
        except BrokenImage:
            return True
        return False

    numbers = indices.tolist()
    with ThreadPool(min(8, os.cpu_count() or 1)) as pool:
        checks = tqdm(
            pool.imap(fails, numbers, chunksize=16),
            total=len(numbers),
            desc=f"checking {purpose} images",
            disable=None,
        )
        return [index for index, failed in zip(numbers, checks, strict=True) if failed]


def _split(images: Images, classes: Sequence[Indices], cut: range, view: View) -> ImageSplit:
    indices = np.concatenate([classes[position] for position in cut])
    sizes = torch.tensor([len(classes[position]) for position in cut])
    labels = torch.repeat_interleave(torch.tensor(list(cut)), sizes)
    return ImageSplit(images, indices, labels, view)


def _check_tested(tasks: Sequence[Task[ImageSplit]]) -> None:
    for task in tasks:
        if not len(task.test):
            raise ValueError(
                f"every session must have a test image, got none in {task.name} "
                f"({', '.join(task.classes)})"
            )


def _note_sizes(cuts: Sequence[range], increment: int) -> tuple[str, ...]:
    if len(cuts) > 1 and len(cuts[-1]) < increment:
        return (f"the last session has {len(cuts[-1])} classes, fewer than increment={increment}",)
    return ()
