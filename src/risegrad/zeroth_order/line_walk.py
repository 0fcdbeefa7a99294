"""Moving parameters along a line through where they stand, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from torch import Tensor

from risegrad.common.checks import check_choice

Restore = Literal["copy", "arithmetic"]
RESTORES: tuple[Restore, ...] = ("copy", "arithmetic")

Direction = Callable[[int], Tensor]
"""The direction of the tensor with this index, made when asked: one at a time is alive."""


class Walk(ABC):
    """Tensors that stand at ``theta + offset * direction``; at first the offset is 0."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors

    @abstractmethod
    def to(self, offset: float, direction: Direction) -> None:
        """Stand at ``theta + offset * direction``."""

    @abstractmethod
    def home(self) -> None:
        """Stand at ``theta`` again."""


class CopyWalk(Walk):
    """Starts from a copy every time, so that nothing is left over, not even rounding."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors)
        self.copies = [tensor.clone() for tensor in tensors]

    def to(self, offset: float, direction: Direction) -> None:
        for index, (tensor, copy) in enumerate(zip(self.tensors, self.copies, strict=True)):
            tensor.copy_(copy).add_(direction(index), alpha=offset)

    def home(self) -> None:
        for tensor, copy in zip(self.tensors, self.copies, strict=True):
            tensor.copy_(copy)


class ArithmeticWalk(Walk):
    """Adds differences of offsets, as MeZO does: no copy, and each move rounds once."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__(tensors)
        self.offset = 0.0
        self.direction: Direction | None = None

    def to(self, offset: float, direction: Direction) -> None:
        if direction is not self.direction:
            self.home()
        self._add(offset - self.offset, direction)
        self.offset, self.direction = offset, direction

    def home(self) -> None:
        if self.direction is not None:
            self._add(-self.offset, self.direction)
        self.offset, self.direction = 0.0, None

    def _add(self, change: float, direction: Direction) -> None:
        for index, tensor in enumerate(self.tensors):
            tensor.add_(direction(index), alpha=change)


@contextmanager
def walking(tensors: Sequence[Tensor], restore: Restore) -> Iterator[Walk]:
    """A walk that ends where it began, whatever happens on the way."""
    check_choice("restore", restore, RESTORES)
    walk = CopyWalk(tensors) if restore == "copy" else ArithmeticWalk(tensors)
    try:
        yield walk
    finally:
        walk.home()
