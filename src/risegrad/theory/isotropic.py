"""Any isotropic shape acts on curvature through two numbers (Lemma E.1).

If ``O'PO`` has the law of ``P`` for every orthogonal ``O``, then for every symmetric ``H``

    T(H) = E[P'HP] = alpha H + rho (tr H/d) I

``T`` is a scalar on the identity and a scalar on the traceless matrices, so its traces on these two
spaces give both numbers, from each draw of ``P`` and without choosing any ``H``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.checks import check_positive_int
from risegrad.theory.calibration import tau
from risegrad.theory.conditions import check_real, check_symmetric
from risegrad.theory.drawn_shapes import norm_matched_shape
from risegrad.theory.linear_algebra import scaled_identity, trace
from risegrad.theory.local_model import average_curvature

ShapeSampler = Callable[[int], Tensor]


@dataclass(frozen=True)
class IsotropicMoments:
    """``alpha`` and ``rho`` of a shape, with their standard errors (zero for closed forms)."""

    alpha: float
    rho: float
    alpha_se: float = 0.0
    rho_se: float = 0.0


def norm_matched_moments(d: int, q: int) -> IsotropicMoments:
    """Ours in closed form: ``alpha = 1 - tau``, ``rho = tau`` (Theorem 4.1).

    >>> norm_matched_moments(3, 4)
    IsotropicMoments(alpha=0.625, rho=0.375, alpha_se=0.0, rho_se=0.0)
    """
    weight = tau(check_positive_int("d", d), check_positive_int("q", q))
    return IsotropicMoments(1 - weight, weight)


def isotropic_curvature(H: Tensor, alpha: float, rho: float) -> Tensor:
    """``alpha H + rho (tr H/d) I`` (Lemma E.1, equations 63-65).

    >>> isotropic_curvature(torch.diag(torch.tensor([0.0, 4.0])), 0.5, 0.5).diagonal().tolist()
    [1.0, 3.0]
    """
    matrix = check_symmetric("H", H)
    return alpha * matrix + scaled_identity(rho * average_curvature(matrix), matrix.shape[-1])


def shape_moments(shapes: Tensor) -> tuple[Tensor, Tensor]:
    """Unbiased ``(alpha, rho)`` from every single shape (n, d, d), d >= 2.

    ``omega = |P|_F^2/d`` on the identity; on the traceless symmetric matrices
    ``alpha = (((tr P)^2 + tr P^2)/2 - omega)/(d(d+1)/2 - 1)``; and ``rho = omega - alpha``.

    >>> alpha, rho = shape_moments(torch.eye(2)[None])
    >>> alpha.item(), rho.item()
    (1.0, 0.0)
    """
    batch = check_real("shapes", shapes)
    d = batch.shape[-1]
    if batch.dim() != 3 or batch.shape[-2] != d or d < 2:
        raise ValueError(f"shapes must be (n, d, d) with d >= 2, got {tuple(batch.shape)}")
    omega = batch.square().sum((-2, -1)) / d
    on_symmetric = (trace(batch) ** 2 + (batch * batch.mT).sum((-2, -1))) / 2
    alpha = (on_symmetric - omega) / (d * (d + 1) / 2 - 1)
    return alpha, omega - alpha


def estimate_isotropic_moments(
    sampler: ShapeSampler, samples: int = 10_000, chunk: int = 1_000
) -> IsotropicMoments:
    """Estimate ``alpha`` and ``rho`` of an isotropic law; ``sampler(n)`` returns (n, d, d).

    Shapes are drawn ``chunk`` at a time. That the law is isotropic is the caller's to know.

    >>> draws = torch.Generator().manual_seed(0)
    >>> law = norm_matched_sampler(3, 4, draws)
    >>> found = estimate_isotropic_moments(law, samples=2_000)
    >>> abs(found.alpha - 0.625) < 4 * found.alpha_se
    True
    """
    total, size = check_positive_int("samples", samples), check_positive_int("chunk", chunk)
    if total < 2:
        raise ValueError(f"samples must be >= 2 to give a standard error, got {samples}")
    counts = [min(size, total - start) for start in range(0, total, size)]
    pairs = [shape_moments(sampler(count)) for count in counts]
    alphas, rhos = (torch.cat(values) for values in zip(*pairs, strict=True))
    errors = [float(values.std() / total**0.5) for values in (alphas, rhos)]
    return IsotropicMoments(float(alphas.mean()), float(rhos.mean()), *errors)


def norm_matched_sampler(d: int, q: int, generator: torch.Generator) -> ShapeSampler:
    """Our shape as a sampler: Algorithm 1 on one block, taken literally.

    >>> norm_matched_sampler(3, 4, torch.Generator().manual_seed(0))(5).shape
    torch.Size([5, 3, 3])
    """
    d, q = check_positive_int("d", d), check_positive_int("q", q)

    def draw(count: int) -> Tensor:
        size = (count, q, d)
        return norm_matched_shape(torch.randn(size, generator=generator, dtype=torch.float64))

    return draw
