"""The quadratics of the sandbox: a retention curvature ``H`` with a known spectrum, and gradients.

The damage of a displacement ``-eta x`` is ``Q = (eta^2 / 2) x' H x``. ``H`` is diagonal, or the
same spectrum in a random orthogonal basis: the theory does not see the difference.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.sandbox.spectra import Spectrum


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
        """A unit gradient whose directional curvature ``g'Hg`` is the given number.

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
    H = (basis * values) @ basis.T
    return Quadratic((H + H.T) / 2, values, basis)  # symmetric to the last bit


def random_rotation(d: int, generator: torch.Generator) -> Tensor:
    """Uniform over the orthogonal group: QR of a normal matrix, the diagonal of R made positive."""
    normal = torch.randn(d, d, generator=generator, dtype=torch.float64)
    Q, R = torch.linalg.qr(normal)
    rotation: Tensor = Q * R.diagonal().sign()
    return rotation


def leaning_gradient(problem: Quadratic, generator: torch.Generator) -> Tensor:
    """A unit gradient whose curvature is twice the average, or less where that is impossible.

    Its energy along eigenvector i is a mixture of even, ``1 / d``, and proportional to curvature,
    ``lam_i / d``; the signs are random. The excess over the average is then the same in every
    dimension, and only the dimension changes. (The average of the sandbox's spectra is one.)
    """
    share = min(1.0, 1 / (float(problem.eigenvalues.square().mean()) - 1))
    energy = (1 - share + share * problem.eigenvalues) / problem.d
    coins = torch.randint(0, 2, (problem.d,), generator=generator).to(torch.float64)
    gradient: Tensor = problem.basis @ ((2 * coins - 1) * energy.sqrt())
    return gradient


def even_gradient(d: int, generator: torch.Generator) -> Tensor:
    """A unit gradient with the same energy in every coordinate and random signs.

    Its energy per block does not depend on the seed; with normal entries the ratio of blockwise to
    global deviation would move by tens of percent from draw to draw (see docs/sandbox.md).
    """
    coins = torch.randint(0, 2, (d,), generator=generator).to(torch.float64)
    return (2 * coins - 1) / torch.tensor(d, dtype=torch.float64).sqrt()
