"""Panels A and B: the mean shaped curvature, measured with Algorithm 1, against its closed form.

``E[P'HP] = (1 - tau) H + tau (tr H / d) I`` is a statement about the operator, so the directions
themselves are drawn. Sample averages over 2^k groups of one run give the residual at several
sample sizes without drawing anything twice.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.sandbox.quadratics import Quadratic
from risegrad.sandbox.simulate import operator_sum
from risegrad.theory.identities import expected_curvature, spectral_equalization

RUNGS = 7  # sample sizes N / 64, N / 32, ..., N
REPEATS = 8  # independent repetitions of the whole measurement, for its spread


@dataclass(frozen=True)
class OperatorMeasurement:
    """What panels A and B show; the first repetition is the headline, all give the spread."""

    eigenvalues: Tensor
    """of H, large to small"""
    predicted: Tensor
    """of the mean shaped curvature, by the closed form"""
    measured: Tensor
    """diagonal of the first repetition's average in the eigenbasis of H (unbiased)"""
    average: Tensor
    """the first repetition's average of P'HP, d x d"""
    expected: Tensor
    """its closed form, d x d"""
    eigenvalue_errors: Tensor
    """per repetition: |sorted eigenvalues of the average - predicted| / |predicted|"""
    eigenbasis_errors: Tensor
    """per repetition: the same for the diagonal in the eigenbasis of H"""
    sizes: list[int]
    residuals: Tensor
    """(repetitions, rungs): root mean square of |average - expected|_F / |expected|_F"""

    @property
    def slopes(self) -> Tensor:
        """Per repetition, the slope of log residual over log sample size; -1/2 is expected."""
        x = torch.tensor(self.sizes, dtype=torch.float64).log()
        centered = x - x.mean()
        return (self.residuals.log() @ centered) / centered.square().sum()


def measure_operator(
    problem: Quadratic, q: int, samples: int, seed: int, purpose: str
) -> OperatorMeasurement:
    """Measure ``E[P'HP]`` from ``samples`` literal shapes, ``REPEATS`` times over."""
    expected = expected_curvature(problem.H, q)
    predicted = spectral_equalization(problem.eigenvalues, q)
    runs = [
        _ladder(problem.H, expected, q, samples, generator_for(seed, f"{purpose}/{repeat}"))
        for repeat in range(REPEATS)
    ]
    averages = torch.stack([average for average, _ in runs])
    in_basis = (problem.basis * (averages @ problem.basis)).sum(-2)
    # The spectrum of a symmetric matrix is sorted; the contraction keeps the order of H's.
    ordered = torch.linalg.eigvalsh((averages + averages.mT) / 2).flip(-1)
    return OperatorMeasurement(
        eigenvalues=problem.eigenvalues,
        predicted=predicted,
        measured=in_basis[0],
        average=averages[0],
        expected=expected,
        eigenvalue_errors=(ordered - predicted).norm(dim=-1) / predicted.norm(),
        eigenbasis_errors=(in_basis - predicted).norm(dim=-1) / predicted.norm(),
        sizes=_sizes(samples),
        residuals=torch.tensor([residuals for _, residuals in runs], dtype=torch.float64),
    )


def _sizes(samples: int) -> list[int]:
    """The ladder; its top rung is all samples, also those that fill no whole group."""
    base = samples // 2 ** (RUNGS - 1)
    return [base * 2**rung for rung in range(RUNGS - 1)] + [samples]


def _ladder(
    H: Tensor, expected: Tensor, q: int, samples: int, draws: torch.Generator
) -> tuple[Tensor, list[float]]:
    """The average over all samples, and the residual of group averages at each rung.

    Only one running sum per rung is held: memory does not grow with the number of groups.
    """
    sizes = _sizes(samples)
    total = torch.zeros_like(H)
    open_sums = [torch.zeros_like(H) for _ in sizes[:-1]]
    squares: list[list[float]] = [[] for _ in sizes[:-1]]
    for group in range(1, 2 ** (RUNGS - 1) + 1):
        part = operator_sum(H, q, sizes[0], draws)
        total += part
        for rung, size in enumerate(sizes[:-1]):
            open_sums[rung] += part
            if group % 2**rung == 0:
                squares[rung].append(_residual(open_sums[rung] / size, expected) ** 2)
                open_sums[rung].zero_()
    rest = samples - sizes[0] * 2 ** (RUNGS - 1)
    if rest:
        total += operator_sum(H, q, rest, draws)
    average = total / samples
    below = [math.sqrt(sum(group) / len(group)) for group in squares]
    return average, [*below, _residual(average, expected)]


def _residual(average: Tensor, expected: Tensor) -> float:
    return float((average - expected).norm() / expected.norm())
