"""What makes a stream of images: one frozen table of settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
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


VARIANTS = {"turns": "turned", "permutations": "permuted", "noises": "noisy"}
"""The settings that list the domains of a stream, and what their images are."""

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
    """"hub" only: the column of the images; "" finds it if there is only one."""
    label_column: str = ""
    """"hub" only: the column of the labels; "" finds it if there is only one."""
    test_fraction: Annotated[float, Limits(above=0, below=1)] = 0.2
    """The share of each class for testing if the source has no split."""

    kind: Literal["classes", "domains"] = "classes"
    """"classes" (every session has new ones) or "domains" (every session has all of them, in
    another domain: by ``turns``, ``permutations`` or ``noises``, or from "sessions")."""
    turns: tuple[Annotated[int, Limits(at_least=-360)], ...] = ()
    """"domains" only: degrees by which images are turned, counter-clockwise; a session each."""
    permutations: tuple[Count, ...] = ()
    """"domains" only: seeds of the order of the pixels; 0 does not change it."""
    noises: tuple[Count, ...] = ()
    """"domains" only: standard deviations of the noise, in gray levels of 255; by ``split_seed``.
    """

    known: Count = 0
    """How many of the first sessions are known from the start: scored from then on, never trained.
    """
    base: Count = 0
    """Classes of the first session; 0: as many as ``increment``."""
    increment: PositiveInt = 10
    """Classes of every later session; the last one has the rest, which may be fewer."""
    class_order: Literal["seed", "natural", "given"] = "seed"
    """"seed" (shuffled by ``order_seed``), "natural" (0, 1, ...) or "given" (``given_order``)."""
    order_seed: Seed32 = PUBLISHED_SEED
    """The seed of the class order only; 1993 draws the published order."""
    given_order: tuple[int, ...] = ()
    """"given" only: the class ids in their order; other classes are not used."""
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
    """The seed of ``train_per_class``, ``test_per_class``, ``validation`` and ``noises`` only."""

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
    on_broken: Literal["stop", "skip"] = "stop"
    """An image that cannot be decoded: "stop" raises when it is met; "skip" decodes every image
    once while the stream is built, leaves the broken ones out and lists them in the notes."""

    def __post_init__(self) -> None:
        self._check_types()
        super().__post_init__()
        if not self.name:
            raise ValueError('name must not be empty, got ""')
        if self.source not in ("digits", OWN) and not self.data:
            raise ValueError(
                f'data must say where the images of source="{self.source}" are, got "{self.data}"'
            )
        if (self.class_order == "given") != bool(self.given_order):
            raise ValueError(
                'given_order must list class ids if and only if class_order is "given", '
                f'got class_order="{self.class_order}" and given_order={self.given_order}'
            )
        self._check_domains()

    @property
    def domains(self) -> tuple[str, tuple[int, ...]]:
        """The setting that lists the domains, and what it lists; both empty without domains."""
        given = [name for name in VARIANTS if getattr(self, name)]
        return (given[0], getattr(self, given[0])) if given else ("", ())

    def _check_domains(self) -> None:
        given = [name for name in VARIANTS if getattr(self, name)]
        if self.source == "sessions":
            if given or self.kind != "domains":
                raise ValueError(
                    'kind must be "domains", without turns, permutations and noises, with '
                    f'source="sessions"; got kind="{self.kind}" and {", ".join(given) or "none"}'
                )
        elif len(given) != (self.kind == "domains"):
            raise ValueError(
                "one of turns, permutations and noises must be given if and only if kind is "
                f'"domains", got kind="{self.kind}" and {", ".join(given) or "none of them"}'
            )
        name, values = self.domains
        if len(set(values)) < len(values):
            raise ValueError(f"{name} must be different from each other, got {values}")
        sizes = (self.base, self.increment)
        if name and sizes != (0, ImageStreamSettings.increment):
            raise ValueError(
                "base and increment must be left out where every session has all classes "
                f'(kind="domains"), got base={self.base} and increment={self.increment}'
            )

    def _check_types(self) -> None:
        for one in fields(self):
            value, kind = getattr(self, one.name), type(one.default)
            fits = type(value) is kind or (kind is float and type(value) is int)
            if not fits or (kind is tuple and any(type(number) is not int for number in value)):
                wanted = "tuple of int" if kind is tuple else kind.__name__
                raise ValueError(f"{one.name} must be a {wanted}, got {value!r}")


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
        f"{field}={getattr(settings, field)!r}"
        for field in type(settings).__dataclass_fields__
        if field not in place and getattr(settings, field) != getattr(preset, field)
    ]
    return (
        (f"differs from the named stream {settings.name}: {', '.join(changed)}",) if changed else ()
    )
