"""Simulated trajectories: the points on top of the exact recursions, and what they do not say.

Two rules with the same first two moments have the same mean losses at every step of a quadratic;
their distributions differ, and only simulation shows by how much.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.calibration import kappa, mean_factor
from risegrad.sandbox.simulate import normals, shaped
from risegrad.sandbox.trajectory import RuleName, Tasks
from risegrad.theory.linear import quadratic


def draw(
    rule: RuleName, g: Tensor, q: int, draws: torch.Generator, *, block: int | None = None
) -> Tensor:
    """One update direction per row of ``g`` (runs, d)."""
    runs, d = g.shape
    size = block or d
    if rule == "fo":
        return g
    if rule == "scaled-fo":
        return mean_factor(size, q) * g
    if rule == "covariance-noise":
        return _covariance_noise(g, q, size, draws)
    x = shaped(g, q, runs, draws, block=size)
    return x * kappa(size, q) ** 0.5 if rule == "raw-zo" else x


def _covariance_noise(g: Tensor, q: int, size: int, draws: torch.Generator) -> Tensor:
    """``a g`` plus normal noise of covariance ``(g_b g_b' + |g_b|^2 I) / (q + d_b + 1)``."""
    runs, d = g.shape
    parts = g.reshape(runs, d // size, size)
    along = normals(draws, runs, d // size, 1) * parts
    across = normals(draws, *parts.shape) * parts.norm(dim=-1, keepdim=True)
    noise = (along + across) / math.sqrt(q + size + 1)
    x: Tensor = mean_factor(size, q) * parts + noise
    return x.reshape(runs, d)


@dataclass(frozen=True)
class Walks:
    """Losses of every simulated run at steps 0..T, shape (steps + 1, runs)."""

    forgetting: Tensor
    loss: Tensor


def walk(
    tasks: Tasks,
    rule: RuleName,
    q: int,
    rate: float,
    steps: int,
    runs: int,
    draws: torch.Generator,
    *,
    block: int | None = None,
) -> Walks:
    """Simulate ``runs`` independent trajectories from the historical optimum."""
    theta = torch.zeros(runs, len(tasks.shift), dtype=torch.float64)
    forgetting, loss = [], []
    for step in range(steps + 1):
        if step:
            theta = theta - rate * draw(rule, tasks.gradient(theta), q, draws, block=block)
        forgetting.append(quadratic(tasks.H, theta) / 2)
        loss.append(quadratic(tasks.A, theta - tasks.shift) / 2)
    return Walks(torch.stack(forgetting), torch.stack(loss))
