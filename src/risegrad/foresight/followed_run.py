"""A run with foresight: before each session a prediction, after it what came true.

The prediction knows the point before the session and a row's first step from there, taken a few
times and undone. It goes on in a straight line: the mean of the steps adds up, their scatter adds
up as independent draws do, and the historical loss is quadratic. Where that ends is the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from risegrad.continual.additions.run_memory import made_additions
from risegrad.continual.devices import Devices
from risegrad.continual.host import Score
from risegrad.continual.runs import make_host
from risegrad.continual.session_training import SessionTraining
from risegrad.continual.training_budget import TrainingBudget
from risegrad.curvature.estimates.product_budget import ProductBudget
from risegrad.curvature.operators.objective import Objective
from risegrad.curvature.operators.products import Kind
from risegrad.foresight.foresight_settings import DiagnosisSettings
from risegrad.foresight.reached_point import ReachedPoint, state_of
from risegrad.foresight.row_steps import ExperimentRow, first_steps
from risegrad.foresight.session_diagnosis import problem_at
from risegrad.foresight.session_problem import SessionProblem

END = 0
"""Stands for the end of the session among the numbers of steps."""


@dataclass(frozen=True)
class Moment:
    """So many steps into a session (0: at its end): what was predicted for then, and came true."""

    steps: int
    predicted: float
    """change of the historical loss"""
    damage: float
    """its second-order part"""
    true: float


@dataclass(frozen=True)
class FollowedSession:
    """One session of one run."""

    method: str
    label: str
    seed: int
    task: int
    """from 1"""
    rate: float
    length: int
    """steps of the whole session"""
    historical_loss: float
    moments: tuple[Moment, ...]
    forgetting: float
    """points of accuracy that the earlier tasks lost in this session, on average"""
    learned: float
    """points of accuracy on the session's own task after it"""


def start(settings: Any) -> ReachedPoint:
    """The start of a stream; runs that are ``comparable`` and have one seed may share it."""
    devices = Devices(settings.loop.precision, settings.loop.device)
    host: Any = make_host(settings, devices)
    additions = made_additions(settings)
    return ReachedPoint(settings, host, devices, additions, 0, state_of(host, additions))


def follow(
    beginning: ReachedPoint,
    row: ExperimentRow,
    method: str,
    how: DiagnosisSettings,
    horizons: Sequence[int],
) -> Iterator[FollowedSession]:
    """Learn the whole stream as the run does, and look ahead before every session but the first."""
    point = ReachedPoint(
        row.settings, beginning.host, beginning.devices, beginning.additions, 0, beginning.state
    )
    scores: list[Score] = []
    for task in range(point.tasks):
        point.task = task
        watch = _Watch.of(point, row, how, horizons) if task else None
        training = point.training()
        length = _learn(training, watch)
        session = training.session
        session.module.eval()
        for addition in point.additions:
            addition.end(training)
        point.host.finish(task)
        before, scores = scores, _scores(point, task)
        point.state = state_of(point.host, point.additions)
        if watch is not None:
            lost = [b.percent - a.percent for b, a in zip(before, scores, strict=False)]
            yield FollowedSession(
                method, row.label, row.settings.seed, task + 1, watch.problem.rate, length,
                watch.loss, watch.moments(length), sum(lost) / len(lost), scores[task].percent,
            )  # fmt: skip


def _scores(point: ReachedPoint, task: int) -> list[Score]:
    found: list[Score] = point.host.score(range(task + 1))[point.host.main_score]
    return found


def _learn(training: SessionTraining, watch: _Watch | None) -> int:
    """All epochs; the number of steps."""
    taken = 0
    for epoch in range(training.session.epochs):
        for _ in training.steps(epoch):
            taken += 1
            if watch is not None and taken in watch.horizons:
                watch.look(training, taken)
                training.session.module.train()
    if watch is not None:
        watch.look(training, END)
    return taken


class _Watch:
    """One session: its prediction, and looks at the historical loss on the way."""

    def __init__(
        self, problem: SessionProblem, gram: Tensor, linear: float, horizons: Sequence[int]
    ) -> None:
        self.problem, self.horizons = problem, horizons
        self._gram, self._linear = gram, linear
        self._budget: TrainingBudget = problem.training.session.groups[0].budget
        self.loss = problem.kept.value()
        self._true: dict[int, float] = {}

    @staticmethod
    def of(
        point: ReachedPoint, row: ExperimentRow, how: DiagnosisSettings, horizons: Sequence[int]
    ) -> _Watch:
        """One product for each draw of the row's first step."""
        space = problem_at(point, [row], how).space
        steps = first_steps(point, space, row, how.draws, how.seed)
        problem = problem_at(point, [row], how)  # the steps were taken in the session's place
        columns = ProductBudget.of(how.budget).columns
        operator = problem.operator(cast(Kind, how.curvature), columns, how.seed)
        gram = (steps.double().mT @ (operator @ steps).double()).cpu()
        linear = (problem.past_gradient.double() @ steps.double()).mean().item()
        return _Watch(problem, gram, linear, horizons)

    def look(self, training: SessionTraining, steps: int) -> None:
        """The true change of the historical loss by now."""
        self._true[steps] = _loss_now(self.problem, training) - self.loss

    def moments(self, length: int) -> tuple[Moment, ...]:
        """Predicted and true, in the order of the looks."""
        found = []
        for steps, true in self._true.items():
            predicted, damage = self._predict(steps or length, length)
            found.append(Moment(steps, predicted, damage, true))
        return tuple(found)

    def _predict(self, steps: int, length: int) -> tuple[float, float]:
        """In a straight line, at the rates of the schedule."""
        b, per_epoch = self._budget, max(1, length // max(1, self._budget.epochs))
        epochs = [min(step // per_epoch, b.epochs - 1) for step in range(steps)]
        rates = [b.lr_at(epoch) / b.lr_at(0) for epoch in epochs]
        whole, squares = sum(rates), sum(rate**2 for rate in rates)
        own = self._gram.diagonal().mean().item()
        count = len(self._gram)
        mean = own if count < 2 else (self._gram.sum().item() - count * own) / (count**2 - count)
        damage = (whole**2 * mean + squares * (own - mean)) / 2
        return whole * self._linear + damage, damage


def _loss_now(problem: SessionProblem, training: SessionTraining) -> float:
    """The historical loss with the parameters that another session of this task has now."""
    kept, reader = problem.kept, problem.reader.on(training.session)
    with torch.no_grad():
        return Objective(training.session.module, kept.batches, None, reader.answers).value()
