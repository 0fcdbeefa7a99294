"""The quadratics of the sandbox: a retention curvature ``H`` with a known spectrum, and gradients.

Spectra are written as short texts such as ``powerlaw:1``, sorted from large to small and scaled to
average one, so that all damages are in units of the average curvature. The paper does not give its
spectrum; our default is ``lambda_i ~ 1/i``, a few sensitive directions over a long tail. ``H`` is
diagonal, or the same spectrum in a random orthogonal basis: the theory does not see the difference.

The damage of a displacement ``-eta x`` is ``Q = (eta^2 / 2) x' H x``. ``"one-draw"`` samples the
exact law of ``P g`` from one normal vector; ``"directions"`` is Algorithm 1 with its ``q``
directions, for where the algorithm itself, or the operator ``P``, is what is measured.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from risegrad.core.shapers import Sampler, from_directions, one_draw
from risegrad.theory.calibration import kappa
from risegrad.theory.conditions import quadratic

DEFAULT_SPECTRUM = "powerlaw:1"
Shape = Callable[[int], Tensor]


@dataclass(frozen=True)
class Spectrum:
    """A named family of eigenvalues: ``values(d)`` gives ``d`` of them, average one.

    >>> Spectrum.parse("powerlaw:1").values(3)
    tensor([1.6364, 0.8182, 0.5455], dtype=torch.float64)
    """

    text: str
    shape: Shape

    @classmethod
    def parse(cls, text: str) -> "Spectrum":
        """``powerlaw:P`` or ``spiked:K,RATIO``; anything else is an error that says so."""
        kind, _, numbers = text.partition(":")
        try:
            if kind == "powerlaw" and 0 < (power := float(numbers)) < 100:
                return cls(text, lambda d: torch.arange(1, d + 1, dtype=torch.float64) ** -power)
            if kind == "spiked":
                first, ratio = numbers.split(",")
                if (count := int(first)) >= 1 and 1 < float(ratio) < float("inf"):
                    return cls(text, partial(_spiked, count, float(ratio)))
        except ValueError:  # no numbers
            pass
        raise ValueError(
            "spectrum must be powerlaw:P (i**-P, 0 < P < 100) or spiked:K,RATIO (K >= 1 values "
            f"RATIO > 1 times the rest); got {text!r}"
        )

    def values(self, d: int) -> Tensor:
        """``d`` eigenvalues, large to small, average one, float64."""
        raw = self.shape(d).to(torch.float64).sort(descending=True).values
        if not raw[0] > raw[-1]:
            raise ValueError(
                f"spectrum must have at least two different values, got {self.text!r} at d={d}: "
                "a flat curvature has no anisotropy to contract"
            )
        return raw / raw.mean()


def _spiked(count: int, ratio: float, d: int) -> Tensor:
    if count >= d:
        raise ValueError(f"spectrum spiked:K,RATIO: K must be below d={d}, got K={count}")
    return torch.where(torch.arange(d) < count, ratio, 1.0)


@dataclass(frozen=True)
class Quadratic:
    """``H = basis diag(eigenvalues) basis'``; eigenvalues large to small, average one."""

    H: Tensor
    eigenvalues: Tensor
    basis: Tensor

    @property
    def d(self) -> int:
        """The dimension."""
        return len(self.eigenvalues)

    def gradient_with_curvature(self, curvature: float) -> Tensor:
        """A unit gradient with ``g'Hg = curvature``.

        It turns in the plane of the least and the most curved eigenvector:
        ``g = cos(t) v_min + sin(t) v_max``, ``g'Hg = cos^2 lam_min + sin^2 lam_max``.
        """
        low, high = self.eigenvalues[-1], self.eigenvalues[0]
        share = ((curvature - low) / (high - low)).clamp(0, 1)
        return (1 - share).sqrt() * self.basis[:, -1] + share.sqrt() * self.basis[:, 0]


def diagonal(spectrum: Spectrum, d: int) -> Quadratic:
    """The spectrum on the coordinate axes."""
    values = spectrum.values(d)
    return Quadratic(torch.diag(values), values, torch.eye(d, dtype=torch.float64))


def rotated(spectrum: Spectrum, d: int, generator: torch.Generator) -> Quadratic:
    """The same spectrum in a basis drawn uniformly from the orthogonal group."""
    values, basis = spectrum.values(d), random_rotation(d, generator)
    return Quadratic(symmetric((basis * values) @ basis.T), values, basis)


def symmetric(matrix: Tensor) -> Tensor:
    """Symmetric to the last bit."""
    return (matrix + matrix.mT) / 2


def random_rotation(d: int, generator: torch.Generator) -> Tensor:
    """Uniform over the orthogonal group: QR of a normal matrix, the diagonal of R made positive."""
    normal = torch.randn(d, d, generator=generator, dtype=torch.float64)
    Q, R = torch.linalg.qr(normal)
    rotation: Tensor = Q * R.diagonal().sign()
    return rotation


def even_gradient(d: int, generator: torch.Generator) -> Tensor:
    """A unit gradient with the same energy in every coordinate and random signs.

    Its energy per block does not depend on the seed; with normal entries the ratio of blockwise to
    global deviation would move by tens of percent from draw to draw.
    """
    coins = torch.randint(0, 2, (d,), generator=generator).to(torch.float64)
    return (2 * coins - 1) / torch.tensor(d, dtype=torch.float64).sqrt()


def leaning_gradient(problem: Quadratic, generator: torch.Generator) -> Tensor:
    """A unit gradient whose curvature is twice the average, or less where that is impossible.

    Its energy along eigenvector i is a mixture of even, ``1 / d``, and proportional to curvature,
    ``lam_i / d``; the signs are random. The excess over the average is then the same in every
    dimension, and only the dimension changes.
    """
    share = min(1.0, 1 / (float(problem.eigenvalues.square().mean()) - 1))
    energy = (1 - share + share * problem.eigenvalues) / problem.d
    coins = torch.randint(0, 2, (problem.d,), generator=generator).to(torch.float64)
    gradient: Tensor = problem.basis @ ((2 * coins - 1) * energy.sqrt())
    return gradient


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
    g: Tensor, q: int, samples: int, generator: torch.Generator, *,
    block: int | None = None, sampler: Sampler = "one-draw",
) -> Tensor:  # fmt: skip
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
    H: Tensor, g: Tensor, q: int, samples: int, generator: torch.Generator, *,
    block: int | None = None, sampler: Sampler = "one-draw",
) -> Tensor:  # fmt: skip
    """One-batch damages ``Q = x'Hx / 2`` (``eta = 1``) of ``samples`` draws, shape (samples,)."""
    numbers = len(g) * (q if sampler == "directions" else 1)
    draws = (shaped(g, q, size, generator, block=block, sampler=sampler)
             for size in chunks(samples, numbers))  # fmt: skip
    return torch.cat([quadratic(H, x) / 2 for x in draws])


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


def second_moment(g: Tensor, q: int, samples: int, generator: torch.Generator) -> Tensor:
    """The measured exposure ``M = E[x x']`` of ``x = P g``."""
    total = torch.zeros(len(g), len(g), dtype=torch.float64)
    for size in chunks(samples, len(g)):
        x = shaped(g, q, size, generator)
        total += x.T @ x
    return total / samples
