"""SAM: the gradient from where the loss is about highest nearby."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from risegrad.common.declared_fields import Positive
from risegrad.continual.additions.addition import Addition, AdditionSettings, Training


@dataclass(frozen=True)
class SamSettings(AdditionSettings):
    """How far away."""

    name: str = "sam"
    rho: Positive = 0.05
    """The l2 distance over all parameters that train by backpropagation."""
    summary: ClassVar[str] = "SAM: the gradient at theta + rho g/|g|, a second pass per step"

    def make(self, seed: int) -> Sam:
        """SAM with these settings; it draws nothing, so the seed is not used."""
        return Sam(self)


class Sam(Addition):
    """One ascent step, the gradient there, and back: bit by bit, from a copy."""

    name = "sam"
    needs_past = False
    needs_exact = True
    recomputes = True

    def __init__(self, settings: SamSettings) -> None:
        self.settings = settings

    def adjust(self, training: Training, again: Callable[[], Tensor]) -> None:
        moved = [p for p in training.exact_parameters.values() if p.grad is not None]
        if not moved:
            return
        before = [p.detach().clone() for p in moved]
        try:
            with torch.no_grad():
                gradients = [p.grad for p in moved if p.grad is not None]
                norm = torch.stack([torch.linalg.vector_norm(g) for g in gradients]).norm()
                # A gradient of zero stays where it is.
                scale = self.settings.rho / norm.clamp(min=torch.finfo(norm.dtype).tiny)
                for parameter, gradient in zip(moved, gradients, strict=True):
                    parameter.add_(gradient * scale)
            again()
        finally:
            with torch.no_grad():
                for parameter, value in zip(moved, before, strict=True):
                    parameter.copy_(value)
