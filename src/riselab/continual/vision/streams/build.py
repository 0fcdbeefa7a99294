"""From settings to a stream: open the source, order the classes, cut the sessions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from riselab.common.inputs import Hub, Known, Local, Reading
from riselab.continual.batches import Indices, chosen, share
from riselab.continual.host import Stream, Task
from riselab.continual.preflight import too_few, untested
from riselab.continual.vision.streams.hub import hub
from riselab.continual.vision.streams.images import (
    Images,
    ImageSource,
    ImageSplit,
    OtherImages,
    View,
    by_class,
    class_order,
    sessions,
)
from riselab.continual.vision.streams.settings import (
    ImageStreamSettings,
    OwnImageStream,
    departures,
)
from riselab.continual.vision.streams.sources import (
    DOMAINS,
    cifar100,
    digits,
    domainnet,
    folder,
    image_sessions,
    npz,
    turned,
)

ImageTask = Task[ImageSplit]


def build_stream(settings: ImageStreamSettings) -> Stream[ImageSplit]:
    """The stream that the settings describe: of classes, or of domains.

    >>> stream = build_stream(ImageStreamSettings(source="digits", increment=5))
    >>> [task.classes for task in stream]
    [('4', '2', '7', '6', '0'), ('3', '5', '8', '9', '1')]
    """
    if isinstance(settings, OwnImageStream) and (whole := settings.build()) is not None:
        return whole
    by_sessions = settings.source == "sessions"
    tasks, notes = _of_sessions(settings) if by_sessions else _of_source(settings)
    for task in tasks:
        if not len(task.test):
            raise ValueError(
                f"every session must have a test image, got none in {task.name} "
                f"({', '.join(task.classes)})"
            )
    return Stream(settings.name, tuple(tasks), tuple(notes), known=settings.known)


def _of_source(settings: ImageStreamSettings) -> tuple[list[ImageTask], list[str]]:
    """Classes cut into sessions; or all of them, turned another way in each."""
    source = open_source(settings)
    parts = _Parts(settings, source, _order(settings, len(source.train.class_names)))
    every, last = range(len(parts.names)), ""
    if settings.kind == "domains":
        tasks = [
            parts.task(f"turned {degrees}", every, _turned(source, degrees))
            for degrees in settings.turns
        ]
    else:
        cuts = sessions(len(parts.names), settings.base, settings.increment)
        tasks = [parts.task(f"session {number}", cut) for number, cut in enumerate(cuts)]
        if len(cuts) > 1 and len(cuts[-1]) < settings.increment:
            wanted = f"fewer than increment={settings.increment}"
            last = f"the last session has {len(cuts[-1])} classes, {wanted}"
    without = untested(zip(parts.names, map(len, parts.test), strict=True))
    told = [*departures(settings), *source.notes, *filter(None, [last]), *parts.notes, *without]
    return tasks, told


def _of_sessions(settings: ImageStreamSettings) -> tuple[list[ImageTask], list[str]]:
    """Images of its own for every session; classes that one lacks have no images in it."""
    tasks: list[ImageTask] = []
    notes: list[str] = []
    for name, source in image_sessions(_place(settings), settings.test_fraction).items():
        there = np.unique(source.train.labels)
        parts = _Parts(settings, source, there)
        parts.spread(there, source.train.class_names)
        tasks.append(parts.task(name, range(len(parts.names))))
        notes += [*source.notes, *parts.notes]
    return tasks, notes


def _turned(source: ImageSource, degrees: int) -> ImageSource:
    if not degrees:
        return source
    change = partial(turned, degrees=degrees)
    train, test = (OtherImages(part, change=change) for part in (source.train, source.test))
    return ImageSource(train, test)


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
        case "hub" if not _place(settings).exists():
            return Hub(settings.data, "dataset")
        case "domainnet":
            lists = (f"{domain}_{part}.txt" for domain in DOMAINS for part in ("train", "test"))
            return Local(settings.data, (*DOMAINS, *lists))
        case "digits":
            return None
        case _:
            return Local(settings.data)


def _order(settings: ImageStreamSettings, count: int) -> Indices:
    """The ids of the used classes in the order in which they come."""
    if settings.classes > count:
        raise ValueError(f"classes must be at most {count} here, got {settings.classes}")
    natural = settings.class_order == "natural"
    order: Indices = np.arange(count) if natural else class_order(count, settings.order_seed)
    return order[: settings.classes or None]


class _Parts:
    """The images of every used class, in the class order, by purpose."""

    def __init__(self, settings: ImageStreamSettings, source: ImageSource, order: Indices) -> None:
        self.source, self.settings = source, settings
        self.names = [source.train.class_names[number] for number in order]
        train_all, test_all = (
            by_class(part.labels, len(part.class_names)) for part in (source.train, source.test)
        )
        self.notes = (
            *_too_few("train_per_class", settings.train_per_class, source.train, order, train_all),
            *_too_few("test_per_class", settings.test_per_class, source.test, order, test_all),
        )
        self.train: list[Indices] = []
        self.validation: list[Indices] = []
        self.test: list[Indices] = []
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
            self.train.append(train)
            self.validation.append(validation)
            self.test.append(test)

    def spread(self, there: Indices, names: Sequence[str]) -> None:
        """A list for each of these classes, empty for those that are not ``there``."""
        self.names = list(names)
        for images in (self.train, self.validation, self.test):
            known = dict(zip(there.tolist(), list(images), strict=True))
            images[:] = [known.get(number, there[:0]) for number in range(len(names))]

    def task(self, name: str, cut: range, source: ImageSource | None = None) -> ImageTask:
        """The classes of a cut, perhaps with other images in the same places."""
        shown, s = source or self.source, self.settings
        view = View(s.image_size, s.augment, s.test_view, s.resize_ratio, s.normalize)
        return Task(
            name,
            tuple(self.names[position] for position in cut),
            train=_split(shown.train, self.train, cut, view),
            validation=_split(shown.train, self.validation, cut, view),
            test=_split(shown.test, self.test, cut, view),
        )


def _too_few(
    setting: str, wanted: int, images: Images, order: Indices, indices: Sequence[Indices]
) -> tuple[str, ...]:
    """How many images each used class has; of those without any, another note tells."""
    counts = [(images.class_names[number], len(indices[number])) for number in order]
    return too_few(setting, wanted, [(name, count) for name, count in counts if count])


def _split(images: Images, classes: Sequence[Indices], cut: range, view: View) -> ImageSplit:
    indices = np.concatenate([classes[position] for position in cut])
    sizes = torch.tensor([len(classes[position]) for position in cut])
    labels = torch.repeat_interleave(torch.tensor(list(cut)), sizes)
    return ImageSplit(images, indices, labels, view)
