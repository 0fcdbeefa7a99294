"""The shapes that a given batch of directions makes, and the two numbers of any isotropic shape.

Nothing here draws: directions (..., q, d) come in, so that every identity can be checked on the
very batch that an algorithm used.

If ``O'PO`` has the law of ``P`` for every orthogonal ``O``, then for every symmetric ``H``

    T(H) = E[P'HP] = alpha H + rho (tr H/d) I      (Lemma E.1)

``T`` is a scalar on the identity and a scalar on the traceless matrices, so its traces on these two
spaces give both numbers, from each draw of ``P`` and without choosing any ``H``.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.checks import check_number, check_positive_int
from risegrad.theory.calibration import kappa, tau
from risegrad.theory.conditions import *
from risegrad.theory.identities import average_curvature

__all__ = [
    "IsotropicMoments",
    "ShapeSampler",
    "coupling_fluctuation_operator",
    "estimate_isotropic_moments",
    "isotropic_curvature",
    "norm_matched_moments",
    "norm_matched_sampler",
    "norm_matched_shape",
    "operator_fluctuation",
    "raw_shape",
    "shape_moments",
    "two_point_estimate",
]


def check_directions(directions: object, d: int | None = None) -> Tensor:
    """Directions (..., q, d) with q, d >= 1."""
    rows = check_real("directions", directions)
    if rows.dim() < 2 or 0 in rows.shape[-2:] or (d is not None and rows.shape[-1] != d):
        width = "d" if d is None else f"d = {d}"
        raise ValueError(
            f"directions must have shape (..., q, d) with q >= 1 and {width}, "
            f"got {tuple(rows.shape)}"
        )
    return rows


def raw_shape(directions: Tensor) -> Tensor:
    """``Z = (1/q) sum_i z_i z_i'`` (equation 6).

    >>> raw_shape(torch.tensor([[1.0, 0.0], [1.0, 2.0]])).tolist()
    [[1.0, 1.0], [1.0, 2.0]]
    """
    rows = check_directions(directions)
    return rows.mT @ rows / rows.shape[-2]


def norm_matched_shape(directions: Tensor) -> Tensor:
    """``P = kappa^(-1/2) Z`` (equation 10), one block of equation 25 and of Algorithm 1.

    >>> norm_matched_shape(torch.tensor([[1.0, 1.0]])).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    rows = check_directions(directions)
    q, d = rows.shape[-2:]
    return raw_shape(rows) / math.sqrt(kappa(d, q))


def two_point_estimate(
    f: Callable[[Tensor], Tensor], theta: Tensor, directions: Tensor, mu: float
) -> Tensor:
    """``(1/q) sum_i (f(theta + mu z_i) - f(theta - mu z_i)) / (2 mu) z_i`` (equation 6).

    ``f`` maps (..., q, d) to (..., q). On a quadratic this is ``Z grad f`` with no residual.

    >>> half_square = lambda x: x.square().sum(-1) / 2
    >>> two_point_estimate(half_square, torch.tensor([1.0, 2.0]), torch.eye(2), mu=0.1)
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    point = check_vector("theta", theta)
    rows = check_directions(directions, point.shape[-1])
    radius = check_number("mu", mu, above=0)
    centre = point[..., None, :]
    slopes = (f(centre + radius * rows) - f(centre - radius * rows)) / (2 * radius)
    return (slopes[..., None] * rows).mean(-2)


def operator_fluctuation(H: Tensor, directions: Tensor) -> Tensor:
    """``Xi = P'HP - E[P'HP]``, through ``D = Z - I`` (equations 75-77).

    ``Xi = (1/kappa) (DH + HD + DHD - (H + tr(H) I)/q)``, exact for any symmetric ``H``.

    >>> round(operator_fluctuation(torch.eye(1), torch.ones(3, 1)).item(), 9)
    -0.4
    """
    matrix = check_symmetric("H", H)
    d = matrix.shape[-1]
    rows = check_directions(directions, d)
    q = rows.shape[-2]
    offset = raw_shape(rows) - torch.eye(d, dtype=rows.dtype, device=rows.device)
    centre = (matrix + scaled_identity(trace(matrix), d)) / q
    random = offset @ matrix + matrix @ offset + offset @ matrix @ offset
    return (random - centre) / kappa(d, q)


def coupling_fluctuation_operator(
    H_bc: Tensor, directions_b: Tensor, directions_c: Tensor
) -> Tensor:
    """``P_b'H_bc P_c - a_b a_c H_bc``, through ``D_b`` and ``D_c`` (equation 112).

    >>> ones = torch.ones(3, 1)
    >>> round(coupling_fluctuation_operator(torch.ones(1, 1), ones, 2 * ones).item(), 9)
    1.8
    """
    block = check_real("H_bc", H_bc)
    left = check_directions(directions_b, block.shape[-2])
    right = check_directions(directions_c, block.shape[-1])
    inflation = kappa(left.shape[-1], left.shape[-2]) * kappa(right.shape[-1], right.shape[-2])
    rows = raw_shape(left) - torch.eye(left.shape[-1], dtype=left.dtype, device=left.device)
    columns = raw_shape(right) - torch.eye(right.shape[-1], dtype=left.dtype, device=left.device)
    return (rows @ block + block @ columns + rows @ block @ columns) / math.sqrt(inflation)


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
