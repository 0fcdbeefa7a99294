"""How far a model's answers are from what they were, on examples that are held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from risegrad.keeping.kept_examples import Group
from risegrad.keeping.looking import Look


@dataclass(frozen=True)
class Drift:
    """``KL(then || now)`` per prediction, in nats; of features a squared distance."""

    mean: float
    error: float | None
    """The standard error of the mean, over examples; None of a single one."""
    agreement: float | None
    """The part of predictions whose most likely class is the one that it was."""
    examples: int
    unit: str

    def __str__(self) -> str:
        error = "" if self.error is None else f" (+-{self.error:.2g})"
        return f"{self.mean:.3g}{error} {self.unit}"


@torch.no_grad()
def drift_of(look: Look, groups: Sequence[Group]) -> Drift:
    """The drift over all predictions of these groups."""
    sums, counts, same = [], [], []
    with look.quietly():
        for group in groups:
            rows, answers = look.rows(group.batch), group.answers.to(look.device)
            distances, agreements = answers.distances(rows).double().cpu(), answers.agreements(rows)
            sums += [part.sum() for part in torch.split(distances, list(group.counts))]
            counts += list(group.counts)
            same += [] if agreements is None else [agreements.cpu()]
    total, size = torch.stack(sums), torch.tensor(counts, dtype=torch.float64)
    mean = total.sum() / size.sum()
    # Predictions of one example are alike: the error is of a ratio of sums over examples.
    spread = (total - mean * size).square().sum() * len(size) / max(len(size) - 1, 1)
    error = float(spread.sqrt() / size.sum()) if len(size) > 1 else None
    agreement = float(torch.cat(same).double().mean()) if same else None
    unit = "nats per token" if max(counts) > 1 else "nats per prediction"
    if agreement is None:
        unit = "of the features' variance"
    return Drift(float(mean), error, agreement, len(size), unit)
