"""What makes a stream of images: one frozen table of settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from risegrad.common.checks import check_choice
from riselab import plugins
from riselab.common.inputs import Local, Reading
from riselab.common.settings import (
    APART,
    Checked,
    Count,
    Limits,
    PositiveInt,
    Seed32,
    Share,
    as_plain,
    read,
)
from riselab.continual.vision.streams.images import PUBLISHED_SEED

if TYPE_CHECKING:
    from riselab.continual.host import Stream
    from riselab.continual.vision.streams.images import ImageSource, ImageSplit


OWN = "own"
"""The source of a plugin's stream."""


@dataclass(frozen=True)
class ImageStreamSettings(Checked):
    """Where the images come from, how classes become sessions, and how an image is shown.

    Every field is a string, a number, a bool or a tuple of numbers, as in TOML; 0 and
    "" mean "all" and "not set".
    """

    name: str = "custom"
    """The name in records: that of a named stream (see ``NAMED``), or any other."""
    source: Literal["cifar100", "folder", "domainnet", "hub", "npz", "sessions", "digits"] = (
        "digits"
    )
    """"cifar100" (torchvision), "folder", "domainnet", "hub" (Hugging Face), "npz", "sessions" (a
    folder with an .npz file or a folder of images for each session) or "digits"."""
    data: str = ""
    """Folder, file or hub name of the images; relative paths start at the working directory."""
    download: bool = field(default=False, metadata=APART)
    """Whether "cifar100" may be downloaded into ``data``."""
    image_column: str = ""
    """"hub" only: the column of the images; "" stands for "image"."""
    label_column: str = ""
    """"hub" only: the column of the labels; "" stands for "label"."""
    test_fraction: Annotated[float, Limits(above=0, below=1)] = 0.2
    """The share of each class for testing if the source has no split."""

    kind: Literal["classes", "domains"] = "classes"
    """"classes" (every session has new ones) or "domains" (every session has all of them, in
    another domain: by ``turns``, or from "sessions")."""
    turns: tuple[Annotated[int, Limits(at_least=-360)], ...] = ()
    """"domains" only: degrees by which images are turned, counter-clockwise; a session each."""

    known: Count = 0
    """How many of the first sessions are known from the start: scored from then on, never trained.
    """
    base: Count = 0
    """Classes of the first session; 0: as many as ``increment``."""
    increment: PositiveInt = 10
    """Classes of every later session; the last one has the rest, which may be fewer."""
    class_order: Literal["seed", "natural"] = "seed"
    """"seed" (shuffled by ``order_seed``) or "natural" (0, 1, ...)."""
    order_seed: Seed32 = PUBLISHED_SEED
    """The seed of the class order only; 1993 draws the published order."""
    classes: Count = 0
    """Use only the first so many classes of the order; 0: all."""

    train_per_class: Count = 0
    """At most so many training images per class, validation included, chosen by ``split_seed``; 0:
    all."""
    test_per_class: Count = 0
    """At most so many test images per class, chosen by ``split_seed``; 0: all."""
    validation: Share = 0.0
    """The share of the training images of each class set aside for validation."""
    split_seed: Seed32 = 0
    """The seed of ``train_per_class``, ``test_per_class`` and ``validation`` only."""

    image_size: PositiveInt = 224
    """Height and width of the images that the model sees."""
    augment: Literal["pilot", "flip", "none"] = "pilot"
    """Training view: "pilot" (a random crop of 5-100 % of the area, ratio 3/4-4/3, resized, half of
    them mirrored), "flip" (the test view, half of them mirrored) or "none" (the test view)."""
    test_view: Literal["crop", "direct"] = "crop"
    """"crop" (shorter side to ``image_size * resize_ratio``, then the middle) or "direct" (the
    whole image to ``image_size``, whatever its shape): for small images."""
    resize_ratio: Annotated[float, Limits(at_least=1)] = 256 / 224
    """"crop" only: the shorter side before the crop, in units of ``image_size``."""
    normalize: Literal["none", "imagenet", "clip", "half"] = "none"
    """"none" (0..1, as PILOT), "half" (-1..1), or the mean and deviation of "imagenet", "clip"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            raise ValueError('name must not be empty, got ""')
        if self.source not in ("digits", OWN) and not self.data:
            raise ValueError(
                f'data must say where the images of source="{self.source}" are, got "{self.data}"'
            )
        self._check_domains()

    def _check_domains(self) -> None:
        domains = self.kind == "domains"
        if self.source == "sessions" and (self.turns or not domains):
            raise ValueError(
                'kind must be "domains", without turns, with source="sessions"; got '
                f'kind="{self.kind}" and turns {list(self.turns)}'
            )
        if self.source != "sessions" and bool(self.turns) != domains:
            raise ValueError(
                'turns must be given if and only if kind is "domains", got '
                f'kind="{self.kind}" and turns {list(self.turns)}'
            )
        if len(set(self.turns)) < len(self.turns):
            raise ValueError(f"turns must be different from each other, got {self.turns}")
        if self.turns and (self.base, self.increment) != (0, ImageStreamSettings.increment):
            raise ValueError(
                "base and increment must be left out where every session has all classes "
                f'(kind="domains"), got base={self.base} and increment={self.increment}'
            )


@dataclass(frozen=True)
class OwnImageStream(ImageStreamSettings, ABC):
    """A plugin's stream: a subclass has a ``name``, a ``summary`` and its own settings as fields.

    It gives the images; classes, sessions, splits and views are made as for every other source.
    """

    summary: ClassVar[str]
    source: Literal["own"] = "own"  # type: ignore[assignment]

    @abstractmethod
    def open(self) -> ImageSource:
        """All images of the stream, for training and for testing."""

    def build(self) -> Stream[ImageSplit] | None:
        """The whole stream, where the tasks are not to be cut as ours are; None: as ours are."""
        return None

    def reads(self) -> Reading | None:
        """What is read: part of a run's identity. None where everything is made by the code."""
        return Local(self.data) if self.data else None


_CIFAR100 = ImageStreamSettings(source="cifar100", data="data")
_IMAGENET_R = ImageStreamSettings(source="folder", data="data/imagenet-r")

_NAMED: dict[str, ImageStreamSettings] = {
    settings.name: settings
    for settings in (
        replace(_CIFAR100, name="cifar100-inc5", increment=5),
        replace(_CIFAR100, name="cifar100-inc10", increment=10),
        replace(_IMAGENET_R, name="imagenet-r-inc5", increment=5),
        replace(_IMAGENET_R, name="imagenet-r-inc10", increment=10),
        ImageStreamSettings(
            name="domainnet-inc69", source="domainnet", data="data/domainnet", increment=69
        ),
        ImageStreamSettings(
            name="digits",
            source="digits",
            base=4,
            increment=2,
            image_size=32,
            augment="none",
            test_view="direct",
        ),
        ImageStreamSettings(
            name="turned-digits",
            source="digits",
            kind="domains",
            turns=(0, 45, 90, 135),
            image_size=8,
            augment="none",
            test_view="direct",
        ),
    )
}

DESCRIPTIONS: dict[str, str] = {
    "cifar100-inc5": "CIFAR-100, 20 sessions of 5 classes",
    "cifar100-inc10": "CIFAR-100, 10 sessions of 10 classes",
    "imagenet-r-inc5": "ImageNet-R, 40 sessions of 5 classes",
    "imagenet-r-inc10": "ImageNet-R, 20 sessions of 10 classes",
    "domainnet-inc69": "DomainNet, six domains pooled, 5 sessions of 69 classes",
    "digits": "scikit-learn's digits, 4 sessions of 4, 2, 2 and 2 classes, no download",
    "turned-digits": "scikit-learn's digits turned by 0, 45, 90 and 135 degrees, no download",
}
"""One line for every named stream of ours."""

plugins.STREAMS.bring(_NAMED, DESCRIPTIONS)
NAMED: Mapping[str, ImageStreamSettings | type[ImageStreamSettings]] = plugins.RegisterPart(
    plugins.STREAMS, lambda found: issubclass(_class(found), ImageStreamSettings)
)
"""The named streams: settings, or of a plugin the class of its own settings."""


def _class(found: Any) -> type:
    return found if isinstance(found, type) else type(found)


def named_stream(name: str, **changes: Any) -> ImageStreamSettings:
    """The settings of a named stream, with some of them changed.

    >>> named_stream("cifar100-inc10", source="npz", data="small.npz").increment
    10
    """
    check_choice("stream", name, NAMED)
    known = NAMED[name]
    return known(**changes) if isinstance(known, type) else replace(known, **changes)


def read_stream(table: Mapping[str, Any]) -> ImageStreamSettings:
    """Settings from a plain table; ``name`` may name a stream whose settings are changed."""
    name = str(table.get("name", "custom"))
    known = NAMED.get(name)
    if isinstance(known, type):
        return read(known, table, "stream")
    if known is None and "source" not in table:
        check_choice("stream.name", name, NAMED)
    preset = {} if known is None else as_plain(known)
    return read(ImageStreamSettings, {**preset, **table}, "stream")


def departures(settings: ImageStreamSettings) -> tuple[str, ...]:
    """A note for the record if a stream has a known name but other settings.

    Where the data lies is no difference.
    """
    preset = NAMED.get(settings.name)
    if not isinstance(preset, ImageStreamSettings):
        return ()
    place = {"data", "download", "image_column", "label_column"}
    changed = [
        f"{name}={value!r}"
        for name, value in vars(settings).items()
        if name not in place and value != getattr(preset, name)
    ]
    return (
        (f"differs from the named stream {settings.name}: {', '.join(changed)}",) if changed else ()
    )
