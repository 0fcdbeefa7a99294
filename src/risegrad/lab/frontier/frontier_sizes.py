"""How many examples a stream has, and the settings that make them fewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StreamSizes:
    """The most examples of any of its sets; images are counted by class in the settings."""

    train: int
    test: int
    classes: int = 1

    @classmethod
    def of(cls, settings: Any) -> StreamSizes:
        """Of the stream that a run would learn."""
        if settings.domain == "vision":
            from risegrad.continual.vision.streams import build_stream as images

            return cls._most(images(settings.stream), per_class=True)
        from risegrad.continual.language.streams.text_stream_build import build_stream as texts

        return cls._most(texts(settings.stream), per_class=False)

    @classmethod
    def _most(cls, stream: Any, per_class: bool) -> StreamSizes:
        classes = max(len(task.classes) for task in stream) if per_class else 1
        return cls(
            max(len(task.train) for task in stream), max(len(task.test) for task in stream), classes
        )

    def limits(self, cuts: Sequence[str], train: int, test: int) -> dict[str, int]:
        """The settings of the stream for at most so many, but one of each class at least."""
        wanted = [max(1, size // self.classes) for size in (train, test)]
        return dict(zip(cuts, wanted, strict=True))

    def words(self, whole: StreamSizes) -> str:
        """How many there are of those of the ``whole`` stream."""
        return (
            f"examples: {self.train} of {whole.train} for training and {self.test} of "
            f"{whole.test} for testing in the largest set"
        )
