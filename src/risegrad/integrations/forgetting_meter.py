"""A meter of what a model forgets while it learns: ``meter.update()`` after each step of a loop.

What is kept is scored before training, every few steps and after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_choice, check_kind, check_number, check_positive_int
from risegrad.integrations.kept_scores import KeptScore, KeptTask, Metric, Scoring
from risegrad.integrations.records import MeteredRun, write_own_run

EVERY = 50


@dataclass(frozen=True)
class Budget:
    """How much may be forgotten, and what happens when it is more."""

    nats: float
    """The most that the loss on any kept task may rise, per prediction."""
    then: Literal["stop", "back"] = "stop"
    """``stop`` training, or go ``back`` to the last measured point within the budget and stop."""

    def __post_init__(self) -> None:
        check_number("budget", self.nats, above=0)
        check_choice("then", self.then, ("stop", "back"))


@dataclass(frozen=True)
class MeterReading:
    """What the meter shows after a step."""

    step: int
    scores: Mapping[str, KeptScore]
    """By task: kept ones and, if it is measured, the new one, as last measured."""
    rises: Mapping[str, float]
    """By kept task: how much its loss has risen since the start, in nats, as last measured."""
    stop: bool = False
    """Whether the budget is used up: stop training."""
    back: bool = False
    """Whether this is an earlier point, measured again after going back to it."""

    @property
    def rise(self) -> float:
        """The largest rise of a kept task in nats.

        A task whose loss is not finite (training diverged) is worse than all others.
        """
        return self.rises[self._worst()]

    @property
    def finite(self) -> bool:
        """Whether every measured loss is a finite number."""
        return all(math.isfinite(score.loss) for score in self.scores.values())

    def numbers(self) -> dict[str, float]:
        """Everything as plain numbers by name, for a tracker."""
        found = {f"kept_{name}_rise": rise for name, rise in self.rises.items()}
        for name, score in self.scores.items():
            part = f"kept_{name}" if name in self.rises else f"new_{name}"
            found |= {f"{part}_loss": score.loss, f"{part}_score": score.percent}
        return found

    def __str__(self) -> str:
        parts = [f"{name} {score}" for name, score in self.scores.items()]
        worst, back = self._worst(), " (gone back)" if self.back else ""
        rise = f"{self.rises[worst]:+.4f} nats"
        return f"step {self.step}: {', '.join(parts)}; {worst} {rise}{back}"

    def _worst(self) -> str:
        def badness(name: str) -> float:
            return math.inf if math.isnan(self.rises[name]) else self.rises[name]

        return max(self.rises, key=badness)


class ForgettingMeter:
    """Scores ``keep`` (batches by task name) now, every few steps, and on request.

    ``new``: batches of the task to learn, to see both sides. ``metric``: "accuracy", or a
    function of (model, batch) that returns a score in [0, 1] for each example, or a ``Scoring``
    with a loss and a way of reading batches. ``every``: steps between two measurements; None: only
    when you call ``measure``. ``budget``: nats, or a ``Budget``; a loss that is not finite exceeds
    every budget.
    """

    def __init__(
        self,
        model: nn.Module,
        keep: Mapping[str, Any],
        new: Mapping[str, Any] | None = None,
        metric: Metric | Scoring = "accuracy",
        every: int | None = EVERY,
        budget: float | Budget | None = None,
    ) -> None:
        self.model = check_kind("model", model, nn.Module, "a torch module")
        self.every = None if every is None else check_positive_int("every", every)
        self.budget = budget_of(budget)
        self.scoring = metric if isinstance(metric, Scoring) else Scoring(metric)
        _check_names(keep, new)
        self._kept = {n: KeptTask(n, given, self.scoring) for n, given in keep.items()}
        self._new = {n: KeptTask(n, given, self.scoring) for n, given in (new or {}).items()}
        self._good: list[tuple[Tensor, Tensor]] = []
        self.step = 0
        self.readings: list[MeterReading] = []
        """All measurements, the first from before training."""
        if self.measure().stop:
            raise FloatingPointError(
                f"a budget needs a finite loss of every kept task before training, got {self.start}"
            )

    @property
    def start(self) -> MeterReading:
        """The measurement from before training."""
        return self.readings[0]

    @property
    def last(self) -> MeterReading:
        """The newest measurement."""
        return self.readings[-1]

    def update(self, step: int | None = None) -> MeterReading:
        """After every step: measure if it is time, else return the last reading."""
        self.step = self.step + 1 if step is None else step
        if self.every is not None and self.step % self.every == 0:
            return self.measure()
        return MeterReading(self.step, self.last.scores, self.last.rises)

    def measure(self, back: bool = False) -> MeterReading:
        """Score everything now; act if more is lost than the budget allows.

        ``back``: the caller has set the model back to an earlier point.
        """
        reading = replace(self._measured(), back=back)
        if not self._beyond(reading.rise):
            self.readings.append(reading)
            self._keep_good_point(reading)
            return reading
        self.readings.append(replace(reading, stop=True))
        if self._good:  # only of a budget that goes back
            with torch.no_grad():
                for tensor, good in self._good:
                    tensor.copy_(good)
            self.readings.append(replace(self._measured(), stop=True, back=True))
        return self.last

    def finish(self) -> MeterReading:
        """The measurement after training."""
        return self.last if self.last.step == self.step else self.measure()

    def count_from(self, scores: Mapping[str, KeptScore], step: int = 0) -> None:
        """Count from other scores: those that a resumed run had when it began, at ``step``."""
        first = {name: scores.get(name, score) for name, score in self.start.scores.items()}
        self.readings[:] = [MeterReading(step, first, dict.fromkeys(self._kept, 0.0))]
        self._good = []  # where it is now may be beyond the budget, counted from there
        self.measure()

    def write_record(self, path: str | Path, run: MeteredRun) -> None:
        """Write a record of the lab, so that ``rise report`` and frontiers read this run too."""
        tasks = {task.name: task.examples for task in (*self._kept.values(), *self._new.values())}
        percents = [
            {name: score.percent for name, score in reading.scores.items()}
            for reading in (self.start, self.last)
        ]
        name = self.scoring.metric if isinstance(self.scoring.metric, str) else "score"
        write_own_run(Path(path), run, tasks, [*self._kept], (percents[0], percents[1]), name)

    def _measured(self) -> MeterReading:
        both = (*self._kept.values(), *self._new.values())
        scores = {task.name: task.score(self.model) for task in both}
        first = self.readings[0].scores if self.readings else scores
        rises = {name: scores[name].loss - first[name].loss for name in self._kept}
        return MeterReading(self.step, scores, rises)

    def _beyond(self, rise: float) -> bool:
        # Turned round, for a rise that is no number: it is not within any budget.
        return self.budget is not None and not rise <= self.budget.nats

    def _keep_good_point(self, reading: MeterReading) -> None:
        if self.budget is not None and self.budget.then == "back" and reading.finite:
            self._good = [(tensor, tensor.detach().clone()) for tensor in _moving(self.model)]


def budget_of(given: object) -> Budget | None:
    """A number as a budget that stops."""
    if isinstance(given, Real):
        return Budget(check_number("budget", given, above=0))
    allowed = "nats (a number) or a Budget"
    return None if given is None else check_kind("budget", given, Budget, allowed)


def _moving(model: nn.Module) -> list[Tensor]:
    """What training may change: trained parameters, and buffers such as running means."""
    return [*(p for p in model.parameters() if p.requires_grad), *model.buffers()]


def _check_names(keep: Mapping[str, Any], new: Mapping[str, Any] | None) -> None:
    if not isinstance(keep, Mapping) or not keep:
        raise TypeError(f"keep must be tasks by name, such as {{'agnews': dataset}}; got {keep!r}")
    if new is not None and (not isinstance(new, Mapping) or len(new) > 1):
        raise TypeError(f"new must be one task by name, such as {{'sst2': dataset}}; got {new!r}")
    if new is not None and keep.keys() & new.keys():
        raise ValueError(f"a task is kept or new, not both: {', '.join(keep.keys() & new.keys())}")
