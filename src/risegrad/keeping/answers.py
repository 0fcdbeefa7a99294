"""What a model answered then, kept compactly, and how far its answers of now are from that.

A row is one prediction: of a token, or of an example. Few classes are kept with all their
log-probabilities. Of many the most likely are, and one number for the rest together: merging
classes can only lower a divergence, so what is measured is a lower bound, and a close one where
the rest is unlikely. Of features the vectors themselves are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
        now, then = _log_chances(rows, self.classes, self.width), self.values
        chances = then.exp()
        return torch.where(chances > 0, chances * (then - now), 0.0).sum(-1)

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
    classes = wide(rows).topk(TOP).indices.int() if width > FEW else None
    values = _log_chances(rows, classes, width)
    if not bool(values.exp().isfinite().all()):
        raise FloatingPointError("the model's predictions of what is to be kept are not finite")
    return Answers(values, classes, width)


def features(parts: Sequence[Tensor]) -> list[Answers]:
    """The answers of rows of features, with one unit for all of them."""
    rows = wide(torch.cat([*parts]))
    if not bool(rows.isfinite().all()):
        raise FloatingPointError("the model's features of what is to be kept are not finite")
    spread = float((rows - rows.mean(0)).square().sum(-1).mean())
    spread = spread or float(rows.square().sum(-1).mean()) or 1.0
    return [Answers(wide(part), spread=spread) for part in parts]


def wide(rows: Tensor) -> Tensor:
    """In float32 at least."""
    return rows if rows.dtype == torch.float64 else rows.float()


def _log_chances(rows: Tensor, classes: Tensor | None, width: int) -> Tensor:
    """Log-probabilities among the first ``width`` classes: of all, or of some and of the rest."""
    scores = wide(rows[..., :width])
    if classes is None:
        return scores.log_softmax(-1)
    index = classes.long()
    rest = scores.scatter(-1, index, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([scores.gather(-1, index), rest], -1).log_softmax(-1)


def _check_rows(rows: Tensor, then: Tensor, width: int) -> None:
    if len(rows) != len(then) or rows.shape[-1] < width:
        raise ValueError(
            f"the model gives rows of shape {tuple(rows.shape)} for kept examples, and gave "
            f"{(len(then), width)}: it is not the model that they were kept of"
        )
