"""A stream: tasks in the order in which they come, each with training, validation and test data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Split(Protocol):
    """Data of one task for one purpose. What an item is, the domain's host knows."""

    def __len__(self) -> int: ...


S = TypeVar("S", bound=Split)


@dataclass(frozen=True)
class Task(Generic[S]):
    """One task. ``classes`` are the names of its labels, in the order of the labels."""

    name: str
    classes: tuple[str, ...]
    train: S
    validation: S
    test: S

    def sizes(self) -> dict[str, int]:
        """How many examples each split has."""
        return {
            "train": len(self.train),
            "validation": len(self.validation),
            "test": len(self.test),
        }


@dataclass(frozen=True)
class Stream(Generic[S]):
    """Tasks in their order, and what a reader of the record has to know about them."""

    name: str
    tasks: tuple[Task[S], ...]
    notes: tuple[str, ...] = field(default=())
    planned: tuple[str, ...] = field(default=())
    """Names of all tasks of the order, those left out on purpose among them; empty: those that
    come."""
    known: int = 0
    """How many of the first tasks are known from the start: they are scored and never trained."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(f"stream {self.name!r} must have at least one task, got none")
        if not 0 <= self.known < len(self.tasks):
            raise ValueError(
                f"stream.known must leave at least one of the {len(self.tasks)} tasks to learn, "
                f"got {self.known}"
            )

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task[S]:
        return self.tasks[index]

    def __iter__(self) -> Iterator[Task[S]]:
        return iter(self.tasks)
