"""A task's loss and score by a model, measured without disturbing its training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from risegrad.core.undisturbed import Generators
from risegrad.curvature.batches import IGNORED, moved, size_of
from risegrad.curvature.objective import Loss, check_loss
from risegrad.curvature.targets import (
    Predict,
    are_classes,
    check_labels,
    choose_predict,
    counted,
    evaluating,
)

Metric = str | Callable[[nn.Module, Any], Any]
"""``"accuracy"``, or a function of (model, batch): a score in [0, 1] for each example."""


@dataclass(frozen=True)
class Scoring:
    """How batches are scored, if ``metric`` alone is not enough."""

    metric: Metric = "accuracy"
    loss: Loss | None = None
    """A module or a function of (prediction, target) that averages; None: cross-entropy."""
    predict: Predict | None = None
    """``predict(model, batch)``: the prediction and its target, for batches of another form."""

    def __post_init__(self) -> None:
        check_loss(self.loss)
        if self.metric != "accuracy" and not callable(self.metric):
            raise ValueError(f"metric must be 'accuracy' or a function, got {self.metric!r}")


@dataclass(frozen=True)
class KeptScore:
    """How well a model does on a task."""

    loss: float | None
    """Mean over all predictions; of the usual cross-entropy, nats. None: it has no loss."""
    percent: float

    def __str__(self) -> str:
        loss = "" if self.loss is None else f" (loss {self.loss:.4f})"
        return f"{self.percent:.1f} %{loss}"


class Evaluator(Protocol):
    """Something that scores a model in its own way, in place of batches: ``LmEvalTask``, or yours.

    Modes and random states need no care: whoever measures puts them back.
    """

    examples: int
    """How many it looks at, for the record; known after the first score."""

    def score(self, model: nn.Module) -> KeptScore:
        """How well the model does now; if no loss is defined, ``KeptScore(None, percent)``."""


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[Generators]:
    """Eval mode without gradients; modes and the random states that are given come back."""
    generators = Generators()
    try:
        with evaluating(model), torch.no_grad():
            yield generators
    finally:
        generators.put_back()


def kept_task(name: str, given: Any, scoring: Scoring) -> Evaluator:
    """An evaluator as it is; batches with the way of scoring them."""
    if callable(getattr(given, "score", None)) and not isinstance(given, type):
        if not hasattr(given, "examples"):
            raise TypeError(
                f"{name!r} has a method score, so it needs a number examples, too: how many it "
                f"looks at; got {type(given).__name__}"
            )
        evaluator: Evaluator = given
        return evaluator
    return KeptTask(name, given, scoring)


class KeptTask:
    """Batches of one task, held in a fixed order, and how they are scored."""

    def __init__(self, name: str, batches: Iterable[Any], scoring: Scoring) -> None:
        if isinstance(batches, Mapping | Tensor | str) or not isinstance(batches, Iterable):
            kind = type(batches).__name__
            raise TypeError(
                f"{name!r} must be a list or a loader of batches, or an Evaluator, got {kind}"
            )
        self.name, self.metric, self.loss = name, scoring.metric, check_loss(scoring.loss)
        # Lists as tuples, and mappings such as transformers' as plain ones.
        cpu = torch.device("cpu")
        self.batches = [moved(batch, cpu) for batch in batches]
        if not self.batches:
            raise ValueError(f"{name!r} must hold at least one batch, got none")
        self.examples = sum(size_of(batch) for batch in self.batches)
        self._predict = scoring.predict

    def score(self, model: nn.Module) -> KeptScore:
        """Loss and score now; modes and random states do not change."""
        device = next(model.parameters()).device
        sums = torch.zeros(4, dtype=torch.float64)
        with undisturbed(model):
            for batch in self.batches:
                sums += self._sums(model, moved(batch, device))
        loss, predictions, scored, examples = sums.tolist()
        if not predictions:
            raise ValueError(f"{self.name!r} must have a label that counts, got -100 for every one")
        return KeptScore(loss / predictions, 100 * scored / examples)

    def _sums(self, model: nn.Module, batch: Any) -> Tensor:
        """Loss and predictions, score and examples of a batch, each added up."""
        if self._predict is None:
            self._predict = choose_predict(model, batch, self.loss)
        prediction, target = self._predict(model, batch)
        torchs = isinstance(self.loss, nn.CrossEntropyLoss)
        rows, classes = prediction, target
        if (torchs or self.metric == "accuracy") and are_classes(prediction, target):
            ignored = getattr(self.loss, "ignore_index", IGNORED)
            rows, classes = counted(prediction, target, 1 if torchs else None, ignored)
        if torchs:
            prediction, target = rows, classes
        check_labels(prediction, target, self.loss, repr(self.name))
        scores = self._scores(model, batch, rows, classes)
        count = len(classes) if self.loss.reduction == "mean" else min(len(classes), 1)
        # A mean over nothing is not a number.
        loss = self.loss(prediction.float(), target).double().cpu() * count if count else 0.0
        return torch.tensor([loss, count, scores.sum(), len(scores)], dtype=torch.float64)

    def _scores(self, model: nn.Module, batch: Any, prediction: Tensor, target: Tensor) -> Tensor:
        if callable(self.metric):
            given = torch.as_tensor(self.metric(model, batch), dtype=torch.float64).reshape(-1)
            if not bool(prediction.isfinite().all()):
                given = given.nan_to_num(nan=0.0)  # a model that diverged gets nothing right
            if len(given) != size_of(batch) or not bool(((given >= 0) & (given <= 1)).all()):
                raise ValueError(
                    "metric must return one number in [0, 1] for each of "
                    f"{size_of(batch)} examples, got {given.tolist()}"
                )
            return given
        if not are_classes(prediction, target):
            raise ValueError("metric 'accuracy' needs classes as targets; pass a function")
        return (prediction.argmax(-1) == target).double().cpu().reshape(-1)
