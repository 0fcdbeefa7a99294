"""What a model answered then, kept compactly, and how far its answers of now are from that.

A row is one prediction: of a token, or of an example. Few classes are kept with all their
log-probabilities. Of many the most likely are, and one number for the rest together: merging
classes can only lower a divergence, so what is measured is a lower bound, and a close one where
the rest is unlikely. Of features the vectors themselves are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

FEW = 512
"""Classes up to which all are kept."""
TOP = 64
"""Classes that are kept of more."""


@dataclass(frozen=True)
class Answers:
    """The rows of a few examples, as the model gave them."""

    values: Tensor
    """Log-probabilities, of the rest last where there is one; or feature vectors."""
    classes: Tensor | None = None
    """Which classes the values are of, the most likely first; None: of all of them."""
    width: int = 0
    """How many classes there were."""
    spread: float | None = None
    """Of features: their mean squared distance from their mean, the unit of distances."""

    def distances(self, rows: Tensor) -> Tensor:
        """For each row ``KL(then || now)`` in nats; of features half the squared distance."""
        if self.spread is not None:
            _check_rows(rows, self.values, rows.shape[-1])
            return (wide(rows) - self.values).square().sum(-1) / (2 * self.spread)
        _check_rows(rows, self.values, self.width)
        if self.classes is None:
            return _divergence(self.values, wide(rows[..., : self.width]).log_softmax(-1))
        found: Tensor = _MergedDivergence.apply(
            rows[..., : self.width], self.values, self.classes.long()
        )
        return found

    def agreements(self, rows: Tensor) -> Tensor | None:
        """For each row whether its most likely class is the one that it was; None of features."""
        if self.spread is not None:
            return None
        then = self.values.argmax(-1) if self.classes is None else self.classes[:, 0]
        return rows[..., : self.width].argmax(-1) == then

    def to(self, device: torch.device) -> Answers:
        """The same on a device."""
        classes = None if self.classes is None else self.classes.to(device)
        return Answers(self.values.to(device), classes, self.width, self.spread)

    @property
    def bytes(self) -> int:
        """What they take."""
        return sum(
            t.numel() * t.element_size() for t in (self.values, self.classes) if t is not None
        )


def predictions(rows: Tensor) -> Answers:
    """The answers of these rows of scores (logits)."""
    width = rows.shape[-1]
    if width < 2:
        raise ValueError(
            "a prediction must have at least two classes in its last dimension, got shape "
            f"{tuple(rows.shape)}: use of='features'"
        )
    if width > FEW:
        parts = [wide(part).topk(TOP).indices for part in _few(rows)]
        classes = torch.cat(parts) if parts else rows.new_zeros(0, TOP, dtype=torch.long)
        pairs = zip(_few(rows), _few(classes, width), strict=True)
        values = torch.cat([_merged(wide(part), index) for part, index in pairs])
    else:
        classes, values = None, wide(rows).log_softmax(-1)
    if not bool(values.exp().isfinite().all()):
        raise FloatingPointError("the model's predictions on the examples to keep are not finite")
    return Answers(values, None if classes is None else classes.int(), width)


def features(parts: Sequence[Tensor]) -> list[Answers]:
    """The answers of rows of features, with one unit for all of them."""
    rows = wide(torch.cat([*parts]))
    if not bool(rows.isfinite().all()):
        raise FloatingPointError("the model's features on the examples to keep are not finite")
    spread = float((rows - rows.mean(0)).square().sum(-1).mean())
    spread = spread or float(rows.square().sum(-1).mean()) or 1.0
    return [Answers(wide(part), spread=spread) for part in parts]


def wide(rows: Tensor) -> Tensor:
    """In float32 at least."""
    return rows if rows.dtype == torch.float64 else rows.float()


class _MergedDivergence(torch.autograd.Function):
    """``KL(then || now)`` with all but a few classes merged into one.

    A few rows at a time: the scores of a large vocabulary are most of what a pull needs memory for,
    and nothing of their size is kept here but their gradient.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, then: Tensor, classes: Tensor) -> Tensor:
        """The divergence of each row."""
        ctx.save_for_backward(scores, then, classes)
        parts = zip(*_alike(scores, then, classes), strict=True)
        found = [_divergence(old, _merged(wide(now), index)) for now, old, index in parts]
        return torch.cat(found) if found else then.new_zeros(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """``q_j - p_j`` of a class, and ``q_j (1 - p / q)`` of one among the rest of all."""
        scores, then, classes = ctx.saved_tensors
        gradient = torch.empty_like(scores)
        parts = _alike(gradient, scores, then, classes, grads[0])
        for out, now, old, index, weight in zip(*parts, strict=True):
            merged, chances = _merged(wide(now), index).exp(), old.exp()
            p, q = chances[:, -1:], merged[:, -1:]
            found = wide(now).softmax(-1).mul_(1 - torch.where(p > 0, p / q, 0))
            found.scatter_(-1, index, (merged - chances)[:, :-1])
            out.copy_(found.mul_(weight[:, None]))
        return gradient, None, None


def _divergence(then: Tensor, now: Tensor) -> Tensor:
    chances = then.exp()
    return torch.where(chances > 0, chances * (then - now), 0.0).sum(-1)


def _merged(scores: Tensor, classes: Tensor) -> Tensor:
    """Log-probabilities of these classes and, last, of all others together."""
    rest = scores.scatter(-1, classes, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([scores.gather(-1, classes), rest], -1).log_softmax(-1)


ELEMENTS = 1 << 23
"""Scores that are looked at together."""


def _few(rows: Tensor, width: int | None = None) -> Sequence[Tensor]:
    """A few rows at a time."""
    return torch.split(rows, max(1, ELEMENTS // (width or rows.shape[-1]))) if len(rows) else ()


def _alike(first: Tensor, *others: Tensor) -> list[Sequence[Tensor]]:
    return [_few(tensor, first.shape[-1]) for tensor in (first, *others)]


def _check_rows(rows: Tensor, then: Tensor, width: int) -> None:
    if len(rows) != len(then) or rows.shape[-1] < width:
        raise ValueError(
            f"the model returns shape {tuple(rows.shape)} for kept examples, but their stored "
            f"answers need {(len(then), width)}: this is another model"
        )
