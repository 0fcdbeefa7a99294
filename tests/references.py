"""Slow, obviously right references in float64, and the one place for tolerances."""

from __future__ import annotations

import torch
from torch import Tensor

STANDARD_ERRORS = 5.0
"""Monte Carlo bounds: with a fixed seed a test passes or fails for good."""

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype | None = None) -> None:
    """Equal up to the rounding of ``dtype``, relative to the largest entry."""
    dtype = dtype or actual.dtype
    actual, expected = actual.double(), expected.double()
    scale = expected.abs().max().clamp_min(torch.finfo(dtype).tiny)
    error = ((actual - expected).abs().max() / scale).item()
    assert error <= TOLERANCE[dtype], f"relative error {error:.3g} in {dtype}"


def algorithm_1(g: Tensor, directions: Tensor) -> Tensor:
    """The paper's Algorithm 1 for one block, with the matrix Z written out."""
    q, d = directions.shape
    matrix = torch.zeros(d, d, dtype=torch.float64)
    for z in directions.double():
        matrix += torch.outer(z, z) / q
    return matrix @ g.double() / ((q + d + 1) / q) ** 0.5


def standard_scores(sample: Tensor, expected: Tensor) -> Tensor:
    """How many standard errors the mean of ``sample`` (N, ...) lies from ``expected``."""
    error = sample.std(0) / len(sample) ** 0.5
    return (sample.mean(0) - expected).abs() / error


def two_sample_scores(a: Tensor, b: Tensor) -> Tensor:
    """The difference of two sample means in standard errors."""
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    return (a.mean(0) - b.mean(0)).abs() / error
