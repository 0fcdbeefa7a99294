"""Vectorized Monte Carlo over shaped gradients, in chunks of bounded memory.

``"one-draw"`` samples the exact law of ``P g`` from one normal vector; ``"directions"`` is
Algorithm 1 with its ``q`` directions. The first is used where only the law of ``P g`` matters, the
second where the algorithm itself, or the operator ``P`` and not just ``P g``, is what is measured.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from risegrad.core.rise_rule import Sampler, from_directions, one_draw
from risegrad.theory.calibration import kappa
from risegrad.theory.conditions import quadratic

CHUNK_NUMBERS = 1 << 18  # 2 MiB of float64 per temporary: in the cache; larger was slower


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread, then as before.

    Much of the time goes into random numbers, which torch draws on one thread anyway. A second
    thread gained a tenth on an idle machine, and its barriers made the whole ten times slower on a
    busy one. Sums then also come out the same whatever the number of cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def chunks(samples: int, numbers_per_sample: int) -> Iterator[int]:
    """Sizes that add up to ``samples``, each small enough for ``CHUNK_NUMBERS``."""
    size = max(1, CHUNK_NUMBERS // numbers_per_sample)
    for start in range(0, samples, size):
        yield min(size, samples - start)


def normals(generator: torch.Generator, *size: int) -> Tensor:
    """Standard normal numbers, drawn in float32 and returned in float64.

    Drawing is most of the work and five times faster this way. What is lost lies beyond 5.7
    standard deviations (a tail of 1e-8, 1e-4 of the eighth moment) and below 1e-7 in value: far
    under the Monte Carlo error of any affordable sample.
    """
    return torch.randn(*size, generator=generator, dtype=torch.float32).to(torch.float64)


def shaped(
    g: Tensor,
    q: int,
    samples: int,
    generator: torch.Generator,
    *,
    block: int | None = None,
    sampler: Sampler = "one-draw",
) -> Tensor:
    """``samples`` draws of ``P g``, shape (samples, d), each block of ``block`` entries by itself.

    ``g`` is one gradient (d,) or one for each sample (samples, d). No chunking here.
    """
    d = g.shape[-1]
    size = block or d
    blocks = d // size
    parts = g.reshape(*g.shape[:-1], blocks, size)
    if sampler == "directions":
        x = from_directions(parts, normals(generator, samples, blocks, q, size))
    else:
        chi2 = normals(generator, samples, blocks, q).square().sum(-1)
        x = one_draw(parts, normals(generator, samples, blocks, size), chi2, q)
    return x.reshape(samples, d)


def damages(
    H: Tensor,
    g: Tensor,
    q: int,
    samples: int,
    generator: torch.Generator,
    *,
    block: int | None = None,
    sampler: Sampler = "one-draw",
) -> Tensor:
    """One-batch damages ``Q = x'Hx / 2`` (``eta = 1``) of ``samples`` draws, shape (samples,)."""
    numbers = len(g) * (q if sampler == "directions" else 1)
    found = []
    for size in chunks(samples, numbers):
        x = shaped(g, q, size, generator, block=block, sampler=sampler)
        found.append(quadratic(H, x) / 2)
    return torch.cat(found)


def operator_sum(H: Tensor, q: int, samples: int, generator: torch.Generator) -> Tensor:
    """Sum over ``samples`` of ``P'HP``, ``P = kappa^(-1/2) Z`` built from its directions.

    With the directions of one sample as rows of ``D`` (q, d), ``Z H Z = D'(D H D')D / q^2``; no
    d x d matrix is formed per sample, and the sum over samples is one matrix product.
    """
    d = len(H)
    total = torch.zeros_like(H)
    for size in chunks(samples, q * d):
        D = normals(generator, size, q, d)
        inner = D @ H @ D.mT
        total += D.reshape(-1, d).T @ (inner @ D).reshape(-1, d)
    return total / (q**2 * kappa(d, q))


def second_moment(
    g: Tensor, q: int, samples: int, generator: torch.Generator, *, sampler: Sampler = "one-draw"
) -> Tensor:
    """The measured exposure ``M = E[x x']`` of ``x = P g``."""
    total = torch.zeros(len(g), len(g), dtype=torch.float64)
    for size in chunks(samples, len(g) * (q if sampler == "directions" else 1)):
        x = shaped(g, q, size, generator, sampler=sampler)
        total += x.T @ x
    return total / samples
