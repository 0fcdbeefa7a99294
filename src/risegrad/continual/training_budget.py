"""How much and with which optimizer one group of parameters trains in each session."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer

from risegrad.common.declared_fields import Checked, Count, NonNegative, Positive, Share


@dataclass(frozen=True)
class TrainingBudget(Checked):
    """One group's training in each session, with a fresh optimizer every time."""

    epochs: Count = 10
    """Passes over the session's data. The group with the smaller number stops earlier."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """As torch has them."""
    lr: Positive = 0.01
    """Learning rate at the start of each session."""
    momentum: Share = 0.9
    """Of SGD."""
    weight_decay: NonNegative = 5e-4
    """As the optimizer understands it: decoupled with adamw, else part of the gradient."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Of the learning rate, epoch by epoch within a session; ``cosine`` falls to zero."""
    clip: NonNegative = 0.0
    """Bound on the l2 norm of the group's gradient, before any shaping; 0 means none."""

    def unused(self) -> dict[str, str]:
        """Settings away from their defaults that the optimizer would not look at, and why."""
        if self.optimizer == "sgd" or self.momentum == TrainingBudget.momentum:
            return {}
        reason = f"is not used by optimizer {self.optimizer!r} but by sgd; got {self.momentum}"
        return {"momentum": reason}

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [round(TrainingBudget(epochs=4, lr=1.0).lr_at(epoch), 3) for epoch in range(4)]
        [1.0, 0.854, 0.5, 0.146]
        """
        if self.schedule == "constant":
            return self.lr
        return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2

    def make_optimizer(self, parameters: Iterable[Parameter]) -> Optimizer:
        """A new optimizer for these parameters."""
        if self.optimizer == "sgd":
            return SGD(parameters, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = Adam if self.optimizer == "adam" else AdamW
        return kind(parameters, self.lr, weight_decay=self.weight_decay)
