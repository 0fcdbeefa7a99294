"""A budget of minutes: which part of a grid fits, and what was cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Generic, TypeVar

Cell = TypeVar("Cell")

STAGES = ((3, 1), (3, 2), (3, 3), (5, 3), (5, 20))
"""Rates and seeds, from what is needed to what is nice to have; each stage contains the last."""


@dataclass
class TimeBudget:
    """Seconds that may be spent, and the pace of the runs so far."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    earlier: float = 0.0
    """spent by commands before this one"""
    paces: list[float] = field(default_factory=list)
    """seconds of each run that was measured"""
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def left(self) -> float:
        """Seconds that are left; below zero when they are used up."""
        return self.seconds - self.earlier - (self.clock() - self.began)

    @property
    def pace(self) -> float:
        """Seconds of a run, as far as known; 0 before the first."""
        return fmean(self.paces) if self.paces else 0.0

    def allows(self, runs: int = 1) -> bool:
        """Whether so many more runs fit; the first run is always allowed, to learn the pace."""
        return not self.paces or self.pace * runs <= self.left


@dataclass(frozen=True)
class Stage(Generic[Cell]):
    """Runs that are started together or not at all, and what is missing without them."""

    cells: tuple[Cell, ...]
    words: str


def stages(
    cells: Sequence[Cell],
    rate: Callable[[Cell], int],
    seed: Callable[[Cell], int],
) -> list[Stage[Cell]]:
    """The grid in the order of use: ``rate`` and ``seed`` give a cell's places, counted from 0."""
    found: list[Stage[Cell]] = []
    rest = list(cells)
    for rates, seeds in STAGES:
        inside = [cell for cell in rest if rate(cell) < rates and seed(cell) < seeds]
        rest = [cell for cell in rest if cell not in inside]
        if inside:
            # All methods at one rate come before the next rate, so that a stop leaves no one out.
            ordered = sorted(inside, key=lambda cell: (seed(cell), rate(cell)))
            words = f"{len(inside)} runs for up to {rates} rates with {_seeds(seeds)}"
            found.append(Stage(tuple(ordered), words))
    return found


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"up to {count} seeds"


def run_stages(
    found: Sequence[Stage[Cell]],
    budget: TimeBudget,
    done: Callable[[Cell], bool],
    run: Callable[[Cell], None],
) -> list[str]:
    """Run what fits; what was cut, in words.

    The first stage is begun whatever it takes; a later one only if all of it fits. No run is begun
    that would not end in time, so the budget is exceeded by one run at most.
    """
    cut: list[str] = []
    for number, stage in enumerate(found):
        todo = [cell for cell in stage.cells if not done(cell)]
        if cut or (number and todo and not budget.allows(len(todo))):
            cut += [stage.words] if todo else []
            continue
        for place, cell in enumerate(todo):
            if not budget.allows():
                cut.append(f"{len(todo) - place} of {stage.words}")
                break
            run(cell)
    return cut
