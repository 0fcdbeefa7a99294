"""Panels C and D: the damage gap as the gradient turns, and the one-batch deviation over q."""

from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.core.rise_rule import Sampler
from risegrad.sandbox.quadratics import Quadratic
from risegrad.sandbox.simulate import damages
from risegrad.theory.blockwise import blockwise_moments
from risegrad.theory.conditions import quadratic
from risegrad.theory.deviation import damage_moments
from risegrad.theory.identities import damage_gap

BELOW, ABOVE = 7, 14  # gradients with below-average and with above-average curvature
QUERIES = (1, 2, 4, 8, 16, 32, 64)
ROTATED_QUERIES = (1, 2, 4, 16, 64)  # enough to see the same curve again
LITERAL_QUERIES = (1, 2, 4, 8)  # Algorithm 1 beside the one-draw points where it is affordable


@dataclass(frozen=True)
class GapMeasurement:
    """Panel C: one entry per gradient, from below- to above-average curvature."""

    excess: Tensor
    """directional minus average curvature"""
    predicted: Tensor
    measured: Tensor
    standard_error: Tensor
    """of the measured gap, from the exact variance"""

    @property
    def r_squared(self) -> float:
        """``1 - |measured - predicted|^2 / |measured - mean|^2``: the line is not fitted."""
        left = (self.measured - self.predicted).square().sum()
        return float(1 - left / (self.measured - self.measured.mean()).square().sum())

    @property
    def worst_error(self) -> float:
        """The largest error in standard errors."""
        return float(((self.measured - self.predicted) / self.standard_error).abs().max())


def turning_gradients(problem: Quadratic) -> Tensor:
    """Unit gradients (n, d) whose excess curvature is negative, then zero, then positive."""
    low, high = float(problem.eigenvalues[-1]), float(problem.eigenvalues[0])
    average = float(problem.eigenvalues.mean())
    below = torch.linspace(low, average, BELOW + 1, dtype=torch.float64)[:-1]
    above = torch.linspace(average, high, ABOVE + 1, dtype=torch.float64)
    curvatures = torch.cat([below, above]).tolist()
    return torch.stack([problem.gradient_with_curvature(value) for value in curvatures])


def measure_gap(
    problem: Quadratic, q: int, samples: int, seed: int, purpose: str
) -> GapMeasurement:
    """``Q_FO - mean Q`` over literal shapes, for gradients that turn through the average."""
    gradients = turning_gradients(problem)
    found = []
    for index, g in enumerate(gradients):
        draws = generator_for(seed, f"{purpose}/{index}")
        mean = damages(problem.H, g, q, samples, draws, sampler="directions").mean()
        found.append(quadratic(problem.H, g) / 2 - mean)
    variance = damage_moments(problem.H, gradients, q).variance
    return GapMeasurement(
        excess=quadratic(problem.H, gradients) - problem.eigenvalues.mean(),
        predicted=damage_gap(problem.H, gradients, q),
        measured=torch.stack(found),
        standard_error=(variance / samples).sqrt(),
    )


@dataclass(frozen=True)
class Deviation:
    """Standard deviation of the one-batch damage: measured, its standard error, and exact."""

    q: int
    block: int
    """block size; the whole dimension for global shaping"""
    sampler: Sampler
    samples: int
    measured: float
    standard_error: float
    exact: float


def measure_deviation(
    problem: Quadratic,
    g: Tensor,
    q: int,
    block: int,
    samples: int,
    draws: torch.Generator,
    sampler: Sampler = "one-draw",
) -> Deviation:
    """One point of panel D."""
    found = damages(problem.H, g, q, samples, draws, block=block, sampler=sampler)
    std, error = std_with_error(found)
    exact = float(exact_moments(problem, g, q, block)[1]) ** 0.5
    return Deviation(q, block, sampler, samples, std, error, exact)


def exact_moments(problem: Quadratic, g: Tensor, q: int, block: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of the damage by the closed forms, global when the block is everything."""
    if block == problem.d:
        return damage_moments(problem.H, g, q)
    return blockwise_moments(problem.H, g, [block] * (problem.d // block), q)


def std_with_error(values: Tensor) -> tuple[float, float]:
    """Standard deviation and its standard error, ``sqrt((m4 - s^4) / n) / (2 s)``."""
    centered = values - values.mean()
    variance, fourth = centered.square().mean(), centered.pow(4).mean()
    error = ((fourth - variance**2) / len(values)).sqrt() / (2 * variance.sqrt())
    return float(values.std()), float(error)
