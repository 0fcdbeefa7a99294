"""A-GEM: no step may raise the loss on a memory of earlier tasks, to first order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from risegrad.common.declared_fields import PositiveInt
from risegrad.continual.additions.addition import AdditionSettings, Training
from risegrad.continual.additions.reservoir import Remembering


@dataclass(frozen=True)
class AgemSettings(AdditionSettings):
    """The memory, and how much of it the reference gradient sees."""

    name: str = "agem"
    size: PositiveInt = 500
    """Examples in memory, over all tasks."""
    batch: PositiveInt = 48
    """Examples of it for the reference gradient of each step."""
    summary: ClassVar[str] = "A-GEM: gradients against that of a memory are projected"

    def make(self, seed: int) -> Agem:
        """A-GEM with these settings."""
        return Agem(self, seed)


class Agem(Remembering):
    """``g - (g.r / r.r) r`` in place of ``g`` where ``g.r < 0``; r is the memory's gradient."""

    name = "agem"
    needs_exact = True

    def __init__(self, settings: AgemSettings, seed: int) -> None:
        super().__init__(settings.size, seed)
        self.settings = settings

    def adjust(self, training: Training, again: Callable[[], Tensor]) -> None:
        refs = self.memory.draw(self.settings.batch, training.session.task, training.step)
        if not refs:
            return
        parameters = list(training.exact_parameters.values())
        own = [_gradient(parameter) for parameter in parameters]
        training.backward(refs)
        reference = [_gradient(parameter) for parameter in parameters]
        for parameter, gradient in zip(parameters, projected(own, reference), strict=True):
            parameter.grad = gradient


def projected(own: list[Tensor], reference: list[Tensor]) -> list[Tensor]:
    """``own`` without its part against ``reference``, both taken as one long vector."""
    dot = torch.stack([(g * r).sum() for g, r in zip(own, reference, strict=True)]).sum()
    square = torch.stack([r.square().sum() for r in reference]).sum()
    # Without waiting for the device to say which case it is.
    share = torch.where((dot < 0) & (square > 0), dot / square, torch.zeros_like(dot))
    return [g - share * r for g, r in zip(own, reference, strict=True)]


def _gradient(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    return torch.zeros_like(parameter) if gradient is None else gradient
