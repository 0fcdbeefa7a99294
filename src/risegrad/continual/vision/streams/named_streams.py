"""Streams by name: those of the paper, and small ones for tests and demos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from risegrad import plugins
from risegrad.common.checks import check_choice
from risegrad.common.settings import as_plain, read
from risegrad.continual.vision.streams.image_stream_settings import ImageStreamSettings

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
