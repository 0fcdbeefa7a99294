"""Slow and obviously right: what the theory tests compare closed forms with.

Two references, both over Algorithm 1 taken literally (explicit directions, explicit ``Z``):

- ``quadrature``: expectations of polynomials in the directions, exact up to rounding. A product
  Gauss-Hermite rule with n nodes integrates every monomial of degree below 2n per coordinate.
- ``monte_carlo``: for sizes no product rule reaches; a fixed seed, a fixed sample size, and a bound
  in standard errors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

torch.set_num_threads(1)

PSD = ("psd", "low_rank", "rotated")
KINDS = ("indefinite", *PSD)

# (kind, d, q, samples): every kind, d from 2 to 128, q from 1 to 64; large d get few samples
# because an operator mean averages over d^2 entries anyway.
CASES = [
    ("indefinite", 2, 1, 40_000),
    ("psd", 2, 64, 20_000),
    ("low_rank", 5, 3, 40_000),
    ("rotated", 16, 1, 20_000),
    ("indefinite", 24, 64, 4_000),
    ("psd", 48, 4, 4_000),
    ("low_rank", 64, 16, 3_000),
    ("rotated", 128, 8, 800),
]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*size: int, seed: int) -> Tensor:
    return torch.randn(*size, generator=generator(seed), dtype=torch.float64)


def rotation(d: int, seed: int) -> Tensor:
    return torch.linalg.qr(normal(d, d, seed=seed)).Q


def curvature(kind: str, d: int, seed: int = 0) -> Tensor:
    """A symmetric matrix of the kind; ``rotated`` is a decaying spectrum in a random basis."""
    root = normal(d, d, seed=seed + 17)
    if kind == "indefinite":
        return (root + root.mT) / 2
    if kind == "psd":
        return root @ root.mT / d
    if kind == "low_rank":
        thin = root[:, : max(1, d // 4)]
        return thin @ thin.mT / thin.shape[1]
    basis = rotation(d, seed + 18)
    return (basis * torch.logspace(1, -2, d, dtype=torch.float64)) @ basis.mT


def gradient(d: int, seed: int = 0) -> Tensor:
    return normal(d, seed=seed + 19)


def literal_shape(directions: Tensor) -> Tensor:
    """Algorithm 1, lines 2-4, for directions (..., q, d): sum the outer products, divide, scale."""
    q, d = directions.shape[-2:]
    total = sum(directions[..., i, :, None] * directions[..., i, None, :] for i in range(q))
    return ((q + d + 1) / q) ** -0.5 * total / q


def literal_blockwise(g: Tensor, directions: Sequence[Tensor]) -> Tensor:
    """Algorithm 1 on all blocks: the concatenated ``P_b g_b``."""
    parts = g.split([block.shape[-1] for block in directions])
    return torch.cat(
        [literal_shape(block) @ part for block, part in zip(directions, parts, strict=True)], dim=-1
    )


def literal_damages(H: Tensor, g: Tensor, directions: Sequence[Tensor], eta: float = 1.0) -> Tensor:
    """``eta^2/2 x'Hx`` of the literal step; one block of directions is the global shape."""
    x = literal_blockwise(g, directions)
    return eta**2 / 2 * ((x @ H) * x).sum(-1)


def quadrature(counts: Sequence[int], sizes: Sequence[int], nodes: int = 5) -> tuple:
    """Directions of every block, (N, q_b, d_b) each, and the weights (N,) of the rule."""
    return _quadrature(tuple(counts), tuple(sizes), nodes)


@cache
def _quadrature(counts: tuple[int, ...], sizes: tuple[int, ...], nodes: int) -> tuple:
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    dims = sum(q * d for q, d in zip(counts, sizes, strict=True))
    index = np.indices((nodes,) * dims).reshape(dims, -1)
    weight = np.prod((weights / weights.sum())[index], axis=0)
    flat = torch.from_numpy(points[index].T.copy())
    chunks = flat.split([q * d for q, d in zip(counts, sizes, strict=True)], dim=-1)
    shaped = [c.reshape(-1, q, d) for c, q, d in zip(chunks, counts, sizes, strict=True)]
    return shaped, torch.from_numpy(weight)


def exact_mean(values: Tensor, weights: Tensor) -> Tensor:
    return torch.tensordot(weights, values, dims=1)


@dataclass(frozen=True)
class Estimate:
    mean: Tensor
    error: Tensor


def monte_carlo(
    statistic: Callable[..., Tensor],
    counts: Sequence[int],
    sizes: Sequence[int],
    samples: int,
    seed: int,
    chunk: int = 200,
) -> Estimate:
    """Mean and standard error of ``statistic(*directions)`` over independent batches."""
    draws = generator(seed)
    values = []
    for start in range(0, samples, chunk):
        size = min(chunk, samples - start)
        blocks = [
            torch.randn(size, q, d, generator=draws, dtype=torch.float64)
            for q, d in zip(counts, sizes, strict=True)
        ]
        values.append(statistic(*blocks))
    first = sum(v.sum(0) for v in values) / samples
    second = sum((v - first).square().sum(0) for v in values) / (samples - 1)
    return Estimate(first, (second / samples).sqrt())


def worst_z(estimate: Estimate, expected: Tensor) -> float:
    """The largest distance between estimate and expectation, in standard errors."""
    return float(((estimate.mean - expected).abs() / estimate.error).max())


def close(actual: Tensor, expected: Tensor | float, rtol: float = 1e-9) -> None:
    """Equal up to float64 rounding, relative to the size of the whole tensor."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    scale = max(float(expected.abs().max()), 1e-300)
    torch.testing.assert_close(actual, expected.expand_as(actual), rtol=0, atol=rtol * scale)


def eye(d: int) -> Tensor:
    return torch.eye(d, dtype=torch.float64)
