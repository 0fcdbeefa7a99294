"""A small model and its data, for loops and for Lightning."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MICRO, ACCUMULATE, STEPS, CLIP, RATE = 2, 2, 4, 0.05, 0.01


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    size = STEPS * ACCUMULATE * MICRO
    return torch.randn(size, 5, generator=generator), torch.randn(size, 2, generator=generator)


def distance_to_targets(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model(x), y)


def loss(model: nn.Module, number: int) -> Tensor:
    x, y = (whole[number * MICRO : (number + 1) * MICRO] for whole in data())
    return distance_to_targets(model, x, y)
