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
from risegrad.integrations.kept_scores import (
    KeptScore,
    KeptTask,
    Metric,
    Scoring,
    kept_task,
    undisturbed,
)
from risegrad.integrations.records import MeteredRun, result_of, write_own_run

EVERY = 50


@dataclass(frozen=True)
class Budget:
    """How much may be forgotten, and what happens when it is more.

    It holds the kept tasks that have a loss; one with percent alone is measured, but stops nothing.
    """

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
    rises: Mapping[str, float | None]
    """By kept task: how much its loss has risen since the start, in nats, as last measured; None
    for a task that has no loss."""
    stop: bool = False
    """Whether the budget is used up: stop training."""
    back: bool = False
    """Whether this is an earlier point, measured again after going back to it."""

    @property
    def rise(self) -> float:
        """The largest rise of a kept task in nats.

        A task whose loss is not finite (training diverged) is worse than all others.
        """
        if not (rises := self._in_nats()):
            raise ValueError(f"no kept task has a loss in nats, got {self}: compare percents")
        return rises[self._worst()]

    @property
    def finite(self) -> bool:
        """Whether every measured loss is a finite number."""
        losses = [score.loss for score in self.scores.values()]
        return all(loss is None or math.isfinite(loss) for loss in losses)

    def numbers(self) -> dict[str, float]:
        """Everything as plain numbers by name, for a tracker."""
        found = {f"kept_{name}_rise": rise for name, rise in self.rises.items()}
        for name, score in self.scores.items():
            part = f"kept_{name}" if name in self.rises else f"new_{name}"
            found |= {f"{part}_loss": score.loss, f"{part}_score": score.percent}
        return {name: number for name, number in found.items() if number is not None}

    def __str__(self) -> str:
        parts = [f"{name} {score}" for name, score in self.scores.items()]
        rises, back = self._in_nats(), " (gone back)" if self.back else ""
        rise = f"; {self._worst()} {rises[self._worst()]:+.4f} nats" if rises else ""
        return f"step {self.step}: {', '.join(parts)}{rise}{back}"

    def _in_nats(self) -> dict[str, float]:
        return {name: rise for name, rise in self.rises.items() if rise is not None}

    def _worst(self) -> str:
        rises = self._in_nats()
        return max(rises, key=lambda name: math.inf if math.isnan(rises[name]) else rises[name])


class ForgettingMeter:
    """Scores ``keep`` now, every few steps, and on request.

    ``keep``: batches, or an ``Evaluator`` such as ``LmEvalTask``, by task name. ``new``: those of
    the task to learn, to see both sides. ``metric``: "accuracy", or a
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
        self._kept = {n: kept_task(n, given, self.scoring) for n, given in keep.items()}
        self._new = {n: kept_task(n, given, self.scoring) for n, given in (new or {}).items()}
        self._good: list[tuple[Tensor, Tensor]] = []
        self.step = 0
        self.readings: list[MeterReading] = []
        """All measurements, the first from before training."""
        if self.measure().stop:
            raise FloatingPointError(
                f"a budget needs a finite loss of every kept task before training, got {self.start}"
            )
        if self.budget is not None and not any(r is not None for r in self.start.rises.values()):
            raise ValueError(
                "a budget in nats needs a kept task with a loss, such as a list of texts; got "
                f"percents alone, of {', '.join(self._kept)}"
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
        if not self._beyond(reading):
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
        both = self._kept | self._new
        tasks = {name: task.examples for name, task in both.items()}
        before, after = (
            {name: score.percent for name, score in reading.scores.items()}
            for reading in (self.start, self.last)
        )
        alike = all(isinstance(task, KeptTask) for task in both.values())
        name = self.scoring.metric if isinstance(self.scoring.metric, str) and alike else "score"
        write_own_run(Path(path), run, tasks, result_of(tasks, [*self._kept], before, after, name))

    def _measured(self) -> MeterReading:
        scores = {}
        for name, task in (self._kept | self._new).items():
            with undisturbed(self.model):
                scores[name] = task.score(self.model)
        first = self.readings[0].scores if self.readings else scores
        rises = {name: _rise(first[name].loss, scores[name].loss) for name in self._kept}
        return MeterReading(self.step, scores, rises)

    def _beyond(self, reading: MeterReading) -> bool:
        rises = [rise for rise in reading.rises.values() if rise is not None]
        # Turned round, for a rise that is no number: it is not within any budget.
        return self.budget is not None and not all(rise <= self.budget.nats for rise in rises)

    def _keep_good_point(self, reading: MeterReading) -> None:
        if self.budget is not None and self.budget.then == "back" and reading.finite:
            self._good = [(tensor, tensor.detach().clone()) for tensor in _moving(self.model)]


def budget_of(given: object) -> Budget | None:
    """A number as a budget that stops."""
    if isinstance(given, Real):
        return Budget(check_number("budget", given, above=0))
    allowed = "nats (a number) or a Budget"
    return None if given is None else check_kind("budget", given, Budget, allowed)


def _rise(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else now - before


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
