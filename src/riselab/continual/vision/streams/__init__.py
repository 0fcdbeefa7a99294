"""Streams of images: sources, class orders, domains, sessions, views."""

from riselab.continual.vision.streams.build import build_stream
from riselab.continual.vision.streams.images import BrokenImage, ImageSplit, class_order, sessions
from riselab.continual.vision.streams.settings import (
    DESCRIPTIONS,
    NAMED,
    ImageStreamSettings,
    OwnImageStream,
    named_stream,
    read_stream,
)

__all__ = [
    "DESCRIPTIONS",
    "NAMED",
    "BrokenImage",
    "ImageSplit",
    "ImageStreamSettings",
    "OwnImageStream",
    "build_stream",
    "class_order",
    "named_stream",
    "read_stream",
    "sessions",
]
