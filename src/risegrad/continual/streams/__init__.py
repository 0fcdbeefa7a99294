"""Class-incremental streams of images: sources, class orders, sessions, views."""

from risegrad.continual.streams.build import build_stream
from risegrad.continual.streams.images import BrokenImage
from risegrad.continual.streams.named import DESCRIPTIONS, NAMED, named_stream
from risegrad.continual.streams.order import class_order, sessions
from risegrad.continual.streams.settings import ImageStreamSettings
from risegrad.continual.streams.split import ImageSplit

__all__ = [
    "DESCRIPTIONS",
    "NAMED",
    "BrokenImage",
    "ImageSplit",
    "ImageStreamSettings",
    "build_stream",
    "class_order",
    "named_stream",
    "sessions",
]
