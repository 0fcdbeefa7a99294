"""Streams of images: sources, class orders, domains, sessions, views."""

from risegrad.continual.vision.streams.class_order import class_order, sessions
from risegrad.continual.vision.streams.image_split import ImageSplit
from risegrad.continual.vision.streams.image_stream_build import build_stream
from risegrad.continual.vision.streams.image_stream_settings import (
    ImageStreamSettings,
    OwnImageStream,
)
from risegrad.continual.vision.streams.images import BrokenImage
from risegrad.continual.vision.streams.named_streams import (
    DESCRIPTIONS,
    NAMED,
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
