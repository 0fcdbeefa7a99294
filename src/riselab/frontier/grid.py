"""The grid of a search for the frontier: its runs, in the order of use, as far as time allows."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from risegrad.common.files import write_json
from risegrad.common.seal import digest
from riselab.common.folders import output_folder
from riselab.continual import runs
from riselab.continual.chat.settings import RULES
from riselab.experiments.cells import RunCell, expand
from riselab.experiments.file import Experiment, RowTable
from riselab.frontier.curves import NATS
from riselab.frontier.problem import (
    KEPT,
    SHARES,
    FrontierMethod,
    FrontierProblem,
    FrontierSettings,
    chosen,
)
from riselab.pages.text import plural
from riselab.records.fields import Record
from riselab.records.record import read_record
from riselab.running.folder import RECORD, State, error_text, look, placed
from riselab.running.plan import fetch, missing_message, preflight
from riselab.running.progress import duration, fraction, where
from riselab.running.worker import DONE, execute, order_for, workload


@dataclass(frozen=True)
class StreamSizes:
    """The most examples of any of its sets; images are counted by class in the settings."""

    train: int
    test: int
    classes: int = 1

    @classmethod
    def of(cls, settings: Any) -> StreamSizes:
        """Of the stream that a run would learn."""
        vision = settings.domain == "vision"
        part = "vision.streams" if vision else "language.streams.build"
        build: Any = importlib.import_module(f"riselab.continual.{part}").build_stream
        stream = [*build(settings.stream)]
        train, test = (max(len(getattr(task, of)) for task in stream) for of in ("train", "test"))
        return cls(train, test, max(len(task.classes) for task in stream) if vision else 1)

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
Say = Callable[[str], None]

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
        """Seconds of a run, as far as known, without the first, which also prepares what all share;
        0 before it."""
        return fmean(self.paces[1:] or self.paces) if self.paces else 0.0

    def allows(self, runs: int = 1) -> bool:
        """Whether so many more runs fit; the first run is always allowed, to learn the pace."""
        return not self.paces or self.pace * runs <= self.left


def run_stages(
    cells: Sequence[Cell],
    place: Callable[[Cell], tuple[int, int]],
    budget: TimeBudget,
    done: Callable[[Cell], bool],
    run: Callable[[Cell, int], None],
) -> list[str]:
    """Run what fits; what was cut, in words. ``place``: a cell's rate and seed, counted from 0;
    ``run`` hears how many runs of its stage follow.

    The first stage is begun whatever it takes; a later one only if all of it fits. No run is begun
    that would not end in time, so the budget is exceeded by one run at most.
    """
    cut: list[str] = []
    known: list[Cell] = []
    for rates, seeds in STAGES:
        inside = (c for c in cells if place(c)[0] < rates and place(c)[1] < seeds)
        stage = [cell for cell in inside if cell not in known]
        # All methods at one rate come before the next rate, so that a stop leaves no one out.
        todo = [c for c in sorted(stage, key=lambda c: place(c)[::-1]) if not done(c)]
        several = "one seed" if seeds == 1 else f"up to {seeds} seeds"
        words = f"{len(stage)} runs for up to {rates} rates with {several}"
        if cut or (known and todo and not budget.allows(len(todo))):
            cut += [words] if todo else []
            todo = []
        known += stage
        for number, cell in enumerate(todo):
            if not budget.allows():
                cut.append(f"{len(todo) - number} of {words}")
                break
            run(cell, len(todo) - number - 1)
    return cut


class Ticker:
    """How far a run is and how long the rest of it may take, while it goes on: on a terminal in
    one line that changes, in a log now and then."""

    def __init__(self, title: str, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self.title, self.say, self.clock = title, say, clock
        self.line = sys.stdout.isatty() and say is print
        self.began = self.spoken = clock()
        self.share: float | None = None

    def tick(self, news: dict[str, Any]) -> None:
        """Take what the run reports."""
        now, share = self.clock(), fraction(news)
        if self.share is None:  # what came before the first step is not the pace of the others
            self.began, self.share = now, share if news.keys() & {"batch", "epoch"} else None
        elif now - self.spoken >= (1 if self.line else 30):
            self.spoken = now
            done = share - self.share
            left = f", about {duration((now - self.began) / done * (1 - share))}" if done else ""
            text = f"{self.title}: {where(news)}{left}"
            print(f"\r{text:<79}", end="\r", flush=True) if self.line else self.say(text)


NAME = "frontier"
PLAN = "plan.json"
FEWEST = {"train": 32, "test": 50}
"""Examples of a set that are used at least, if there are so many."""
WANTED = (3, 3)
"""Rates and seeds that the number of examples is chosen for."""
LEAST_STEPS = 8
"""Of a chat model."""

DIVERGED = FloatingPointError.__name__


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
        self.methods = chosen(self.settings.methods, self.problem.domain == "chat")
        self.out = output_folder(Path(self.settings.out))
        self.budget = TimeBudget(60 * self.settings.minutes, self.clock)
        self.sections = dict(self.problem.sections)
        if self.problem.given or self.problem.files:
            folder = self.problem.link(self.out)
            self.sections["stream"] = self.sections["stream"] | {"data": str(folder)}
            if self.problem.domain == "chat":
                kept = {"folder": str(folder / KEPT)}
                self.sections["abilities"] = self.sections["abilities"] | kept
                # An experiment refuses settings that none of its rules looks at.
                used = {name for m in self.methods.values() for name in RULES[m.rule["name"]].uses}
                rule = self.sections["rule"].items()
                self.sections["rule"] = {name: value for name, value in rule if name in used}

    @property
    def own(self) -> dict[str, FrontierMethod]:
        """The methods that have runs of their own."""
        return {name: method for name, method in self.methods.items() if not method.of}

    @cached_property
    def cells(self) -> list[RunCell]:
        """All runs that there would be with enough time."""
        read = workload().read_config
        return placed(expand(self._experiment(), read), self.out)

    def run(self) -> None:
        """Runs that are done are not repeated, and the time they took counts."""
        self._check()
        self._fit()
        for record in self.records():
            seconds = record.run.seconds.total or 0.0
            self.budget.paces.append(seconds)
            self.budget.earlier += seconds
        methods, rates = plural(len(self.own), "method"), min(self.settings.rates, STAGES[0][0])
        self.say(f"{methods} at {rates} rates with one seed; then more, as far as the time allows")
        self.cut += run_stages(self.cells, self._place, self.budget, self._ended, self._run)

    def records(self) -> list[Record]:
        """Of the runs that are done."""
        folders = [self.out / cell.folder for cell in self.cells if self._state(cell) is State.DONE]
        return [read_record(folder / RECORD) for folder in folders]

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
        row = method.row(self.problem)
        if any(self.methods[other.of] is method for other in self.methods.values() if other.of):
            row["loop"] = {"interpolate": list(SHARES)}
        place = "adapter.lr" if self.problem.domain == "chat" else "lr"
        return RowTable(
            label=method.label, baseline=method.reference, sweep={place: list(rates)}, **row
        )

    def _place(self, cell: RunCell) -> tuple[int, int]:
        rates = self._rates(next(m for m in self.own.values() if m.label == cell.row.method))
        lr = cell.settings["adapter"]["lr"]
        if lr not in rates:
            raise ValueError(f"adapter.lr is what the search varies, it cannot be set to {lr}")
        return rates.index(lr), cell.seed

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
        work = workload()
        if todo and (missing := preflight(todo, work, self.out, 1).missing or fetch(todo, work)):
            raise RuntimeError(missing_message(missing, len(todo)))

    def _fit(self) -> None:
        """Less of each run where the wanted ones would take too long; kept, so that runs fit."""
        chat = self.problem.domain == "chat"
        if not (chat or self.problem.cuts):
            return
        known = _plan(self.out)
        key = digest({"sections": self.sections, "changes": list(self.settings.changes),
                      "examples": self.settings.examples})  # fmt: skip
        if key not in known:
            known[key] = self._fewer_steps() if chat else self._fewer_examples()
            write_json(self.out / PLAN, known)
        for section, limits in known[key]["limits"].items():
            self.sections[section] = self.sections.get(section, {}) | limits
            del self.cells  # they have other numbers now
        self.cut += known[key]["words"]

    def _share(self, settings: Any) -> float:
        """Of a run, how much the time allows for each of those that are wanted."""
        wanted = len(self.own) * WANTED[0] * min(WANTED[1], self.settings.seeds)
        return self.budget.left / wanted / max(runs.seconds(settings), 1e-9)

    def _fewer_steps(self) -> dict[str, Any]:
        """Of chats: half of the time is for the steps, half for all that is scored and kept."""
        settings = runs.read_config(self.cells[0].settings)
        usual: int = settings.adapter.steps
        seeds = min(WANTED[1], self.settings.seeds)  # with one seed alone, if need be
        steps = max(LEAST_STEPS, min(usual, round(usual * seeds * self._share(settings) / 2)))
        if steps == usual or any(
            text.startswith("adapter.steps") for text in self.settings.changes
        ):
            return {"limits": {}, "words": []}
        return {"limits": {"adapter": {"steps": steps}}, "words": [f"steps: {steps} of {usual}"]}

    def _fewer_examples(self) -> dict[str, Any]:
        plain = self.cells[0].settings
        settings = runs.read_config(plain)
        sizes, cuts = StreamSizes.of(settings), self.problem.cuts
        if self.settings.examples:
            limits = sizes.limits(cuts, self.settings.examples, sizes.test)
            return {"limits": {"stream": limits}, "words": []}
        share = self._share(settings)
        if share >= 1:
            return {"limits": {}, "words": []}
        train, test = (
            max(round(share * size), min(size, FEWEST[name]))
            for name, size in (("train", sizes.train), ("test", sizes.test))
        )
        limits = sizes.limits(cuts, train, test)
        # Counted, because classes are cut one by one: what is left is seldom what was wanted.
        left = StreamSizes.of(runs.read_config(plain | {"stream": plain["stream"] | limits}))
        return {"limits": {"stream": limits}, "words": [left.words(sizes)]}

    def _run(self, cell: RunCell, following: int) -> None:
        folder, started = self.out / cell.folder, self.clock()
        outcome, message = execute(order_for(cell, self.out), Ticker(cell.title, self.say).tick)
        seconds = self.clock() - started
        self.budget.paces.append(seconds)
        told = self._measured(read_record(folder / RECORD)) if outcome == DONE else message
        rest = [f"{plural(following, 'more run')} of this stage: about "
                f"{duration(following * self.budget.pace)}"] if following else []  # fmt: skip
        rest.append(f"{duration(max(self.budget.left, 0.0))} of the time left")
        self.say(f"{cell.title}: {told} ({seconds:.1f} s; {'; '.join(rest)})")

    def _measured(self, record: Record) -> str:
        measures = record.result.metrics
        shown = [measures.get(name) for name in ("plasticity", "forgetting")]
        texts = ["?" if value is None else f"{value:.1f}" for value in shown]
        if self.problem.domain == "chat":
            drift = measures.get("forgetting")
            told = "?" if drift is None else NATS.amount(drift)
            return f"{texts[0]} % exact, drift {told} {NATS.unit}"
        return f"learned {texts[0]} %, forgot {texts[1]} points"


def _plan(out: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        found = json.loads((out / PLAN).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
