"""The grid of a search for the frontier: its runs, in the order of use, as far as time allows."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, TypeVar

from risegrad.common.files import output_folder, write_json
from risegrad.common.seal import digest
from riselab.experiments.cells import RunCell, expand
from riselab.experiments.file import Experiment, RowTable
from riselab.frontier.problem import (
    METHODS,
    SHARES,
    FrontierMethod,
    FrontierProblem,
    FrontierSettings,
    chosen,
)
from riselab.records.fields import Record
from riselab.records.record import read_record
from riselab.running import workload
from riselab.running.display import duration, where
from riselab.running.folder import RECORD, State, error_text, look, placed
from riselab.running.plan import fetch, preflight, told
from riselab.running.progress import latest
from riselab.running.worker import DONE, execute, order_for


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
            from riselab.continual.vision.streams import build_stream as images

            return cls._most(images(settings.stream), per_class=True)
        from riselab.continual.language.streams.build import build_stream as texts

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


NAME = "frontier"
PLAN = "plan.json"
FEWEST = {"train": 32, "test": 50}
"""Examples of a set that are used at least, if there are so many."""
WANTED = (3, 3)
"""Rates and seeds that the number of examples is chosen for."""

DIVERGED = FloatingPointError.__name__
Say = Callable[[str], None]


@dataclass
class FrontierGrid:
    """The runs of one search. ``run`` does what is not done and fits into the time."""

    problem: FrontierProblem
    settings: FrontierSettings
    say: Say = print
    clock: Callable[[], float] = time.monotonic
    cut: list[str] = field(default_factory=list, init=False)
    """what the time was too short for, in words"""

    def __post_init__(self) -> None:
        self.methods = chosen(self.settings.methods)
        self.out = output_folder(Path(self.settings.out))
        self.budget = TimeBudget(60 * self.settings.minutes, self.clock)
        self.sections = dict(self.problem.sections)
        if self.problem.given:
            place = {"data": str(self.problem.link(self.out))}
            self.sections["stream"] = self.sections["stream"] | place

    @property
    def own(self) -> dict[str, FrontierMethod]:
        """The methods that have runs of their own."""
        return {name: method for name, method in self.methods.items() if not method.of}

    @cached_property
    def cells(self) -> list[RunCell]:
        """All runs that there would be with enough time."""
        read = workload.load().read_config
        return placed(expand(self._experiment(), read), self.out)

    def run(self) -> None:
        """Runs that are done are not repeated, and the time they took counts."""
        self._check()
        self._choose_examples()
        for record in self.records():
            seconds = record.run.seconds.total or 0.0
            self.budget.paces.append(seconds)
            self.budget.earlier += seconds
        ordered = stages(self.cells, self._rate, lambda cell: cell.seed)
        self.cut += run_stages(ordered, self.budget, self._ended, self._run)

    def records(self) -> list[Record]:
        """Of the runs that are done."""
        folders = [self.out / cell.folder for cell in self.cells if self._state(cell) is State.DONE]
        return [read_record(folder / RECORD) for folder in folders]

    def targets(self) -> tuple[str, ...]:
        """The layers that LoRA is put on, by the last parts of their names; none without LoRA."""
        if not self.problem.lora:
            return ()
        from riselab.continual.language.lora import usual_targets

        model = self.cells[0].settings["model"]
        return tuple(model["targets"]) or usual_targets(model["weights"] or model["name"])

    def failed(self) -> list[str]:
        """The runs that failed, each with the last line of its error."""
        cells = [cell for cell in self.cells if self._state(cell) is State.FAILED]
        texts = (error_text(self.out / cell.folder) or "see log.txt" for cell in cells)
        return [f"{c.title}: {text.splitlines()[-1]}" for c, text in zip(cells, texts, strict=True)]

    def _experiment(self) -> Experiment:
        rows = tuple(self._row(method) for method in self.own.values())
        return Experiment(
            name=NAME, title=self.problem.title, domain=self.problem.domain, rows=rows,
            seeds=tuple(range(self.settings.seeds)), overrides=self.settings.changes,
            **self.sections,
        )  # fmt: skip

    def _row(self, method: FrontierMethod) -> RowTable:
        rates = self._rates(method)[: self.settings.rates]
        row = method.row(self.problem.lora)
        if any(METHODS[other.of] is method for other in self.methods.values() if other.of):
            row["loop"] = {"interpolate": list(SHARES)}
        if method.remembers and self.problem.memory:
            row["memory"] = dict(self.problem.memory)
        return RowTable(
            label=method.label, baseline=method.reference, sweep={"lr": list(rates)}, **row
        )

    def _rate(self, cell: RunCell) -> int:
        rates = self._rates(next(m for m in self.own.values() if m.label == cell.row.method))
        lr = cell.settings["adapter"]["lr"]
        if lr not in rates:
            raise ValueError(f"adapter.lr is what the search varies, it cannot be set to {lr}")
        return rates.index(lr)

    def _rates(self, method: FrontierMethod) -> tuple[float, ...]:
        scale = self.problem.scales.get(method.optimizer, 1.0)
        return method.rates_for(self.problem.lora, scale)

    def _state(self, cell: RunCell) -> State:
        return look(self.out / cell.folder, cell)[0]

    def _ended(self, cell: RunCell) -> bool:
        """Done, or failed in a way that would come again: a rate so large that the loss broke."""
        state = self._state(cell)
        broke = state is State.FAILED and DIVERGED in error_text(self.out / cell.folder)
        return state is State.DONE or broke

    def _check(self) -> None:
        todo = [cell for cell in self.cells if not self._ended(cell)]
        work = workload.load()
        if todo and (missing := preflight(todo, work, self.out, 1).missing or fetch(todo, work)):
            raise RuntimeError(told(missing, len(todo)))

    def _choose_examples(self) -> None:
        """Fewer examples where the wanted runs would take too long; kept, so that runs fit."""
        if not self.problem.cuts:
            return
        known = _plan(self.out)
        key = digest({"sections": self.sections, "changes": list(self.settings.changes),
                      "examples": self.settings.examples})  # fmt: skip
        if key not in known:
            known[key] = self._limits()
            write_json(self.out / PLAN, known)
        limits = known[key]
        if limits["stream"]:
            self.sections["stream"] = self.sections["stream"] | limits["stream"]
            del self.cells  # they have other numbers now
        self.cut += limits["words"]

    def _limits(self) -> dict[str, Any]:
        from riselab.continual import runs

        plain = self.cells[0].settings
        settings = runs.read_config(plain)
        sizes, cuts = StreamSizes.of(settings), self.problem.cuts
        if self.settings.examples:
            return {"stream": sizes.limits(cuts, self.settings.examples, sizes.test), "words": []}
        runs_wanted = len(self.own) * WANTED[0] * min(WANTED[1], self.settings.seeds)
        share = self.budget.left / runs_wanted / max(runs.seconds(settings), 1e-9)
        if share >= 1:
            return {"stream": {}, "words": []}
        train, test = (
            max(round(share * size), min(size, FEWEST[name]))
            for name, size in (("train", sizes.train), ("test", sizes.test))
        )
        limits = sizes.limits(cuts, train, test)
        # Counted, because classes are cut one by one: what is left is seldom what was wanted.
        left = StreamSizes.of(runs.read_config(plain | {"stream": plain["stream"] | limits}))
        return {"stream": limits, "words": [left.words(sizes)]}

    def _run(self, cell: RunCell) -> None:
        folder, started = self.out / cell.folder, self.clock()
        with _shown(folder, cell.title):
            outcome, message = execute(order_for(cell, self.out))
        seconds = self.clock() - started
        self.budget.paces.append(seconds)
        told = _measured(read_record(folder / RECORD)) if outcome == DONE else message
        left = duration(max(self.budget.left, 0.0))
        self.say(f"{cell.title}: {told} ({seconds:.1f} s; {left} of the time left)")


def _plan(out: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads((out / PLAN).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def _measured(record: Record) -> str:
    measures = record.result.metrics
    shown = [measures.get(name) for name in ("plasticity", "forgetting")]
    texts = ["?" if value is None else f"{value:.1f}" for value in shown]
    return f"learned {texts[0]} %, forgot {texts[1]} points"


@contextmanager
def _shown(folder: Path, title: str) -> Iterator[None]:
    """In a terminal, how far the run is, in one line that is written over and over."""
    if not sys.stdout.isatty():
        yield
        return
    stop = threading.Event()

    def follow() -> None:
        while not stop.wait(0.5):
            print(f"\r\x1b[K{title}: {where(latest(folder))}", end="", flush=True)
        print("\r\x1b[K", end="", flush=True)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
