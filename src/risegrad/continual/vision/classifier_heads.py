"""Classifiers that grow with the stream: linear, cosine, and prototypes."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import linear, normalize

HeadKind = Literal["linear", "cosine"]


class Head(nn.Module):
    """One row per class. ``grow`` keeps the rows of old classes and adds fresh ones.

    ``linear``: ``W f + b``, with W uniform of variance 1/width and b zero at start.
    ``cosine``: ``sigma cos(f, w)``, with W uniform within 1/sqrt(width) and one learned sigma.
    """

    def __init__(self, kind: HeadKind, width: int, sigma: float = 1.0) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        self.weight = Parameter(torch.empty(0, width))
        if kind == "linear":
            self.bias = Parameter(torch.empty(0))
        else:
            self.sigma = Parameter(torch.tensor(float(sigma)))

    @property
    def acts_as(self) -> str:
        """For a memory: a linear head is a linear layer, a cosine head is none."""
        return self.kind

    @property
    def classes(self) -> int:
        """How many classes there are so far."""
        return len(self.weight)

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Add ``count`` new classes; the rows of the old ones stay as they are."""
        bound = math.sqrt((3 if self.kind == "linear" else 1) / self.width)
        fresh = torch.empty(count, self.width).uniform_(-bound, bound, generator=generator)
        self.weight = Parameter(torch.cat([self.weight.detach(), fresh.to(self.weight)]))
        if self.kind == "linear":
            self.bias = Parameter(torch.cat([self.bias.detach(), self.bias.new_zeros(count)]))

    def forward(self, features: Tensor) -> Tensor:
        """The scores of all classes: linear, or ``sigma`` times the cosine."""
        if self.kind == "linear":
            return linear(features, self.weight, self.bias)
        return self.sigma * cosine(features, self.weight)

    def rows(self, count: int) -> dict[str, int]:
        """By name of a parameter that has a row per class: its rows of the first classes."""
        return {name: count for name, p in self.named_parameters() if p.ndim}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take a saved state of any number of classes."""
        for name, value in state.items():
            setattr(self, name, Parameter(value.to(self.weight.device)))


def cosine(features: Tensor, rows: Tensor) -> Tensor:
    """Cosines between all features and all rows; of a zero row they are zero."""
    return linear(normalize(features, dim=-1), normalize(rows, dim=-1))


def class_means(features: Tensor, labels: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Sums of features and numbers of examples of the classes ``first .. first + count - 1``.

    Sums, because several processes add up theirs before dividing.
    """
    sums = features.new_zeros(count, features.shape[1])
    sums.index_add_(0, labels - first, features)
    return sums, torch.bincount(labels - first, minlength=count).to(features)
