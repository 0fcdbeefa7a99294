"""Mean and variance of the one-batch damage, exactly: no unknown constant.

Split every direction along and across ``u = g/|g|``: with ``S ~ chi2(q)`` and ``w`` standard normal
across ``u``, the shaped gradient ``x`` has the law of ``|g| (S u + sqrt(S) w) / sqrt(q (q+d+1))``.
So the moments of ``x'Hx`` are polynomials in four numbers of the curvature along the gradient. The
paper bounds this deviation (Proposition B.1) and does not compute it.

All formulas are written without dividing by ``|g|``: a zero gradient has mean and variance zero.

How far one batch may stray from the mean, with high probability (Propositions B.1 and C.2).

The paper states its bounds up to a universal constant ``C`` that it does not give. Two answers:

- ``constant`` is an argument; its default ``PROVEN_CONSTANT`` is a value for which the bounds hold.
  With ``X = d + log(1/delta)``, the singular values of a (q, d) Gaussian matrix (Davidson and
  Szarek) give, with probability ``1 - delta``, ``|Z - I|_op <= 2e + e^2`` with
  ``e = (sqrt(d) + sqrt(2 log(2/delta)))/sqrt(q) <= sqrt(3 (1 + log 2) X/q)``, hence
  ``|Z - I|_op <= 5.08 psi`` and every bound below holds with ``5.08^2 < 26``.
- ``explicit_deviation_bound`` skips that last step and keeps the numbers as they are.

Both are loose; the exact variance (``damage_moments``) is what a person should use.
"""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from risegrad.common.checks import check_number, check_positive_int, check_probability
from risegrad.theory.calibration import kappa
from risegrad.theory.conditions import *

__all__ = [
    "PROVEN_CONSTANT",
    "Moments",
    "blockwise_deviation_bound",
    "chi_square_moment",
    "covariance_deviation_bound",
    "damage_moments",
    "damage_moments_from_scalars",
    "deviation_bound",
    "explicit_deviation_bound",
    "psi",
    "quadratic_linear_covariance",
    "shape_covariance",
    "third_moment",
]


class Moments(NamedTuple):
    """Mean and variance of a random number; unpacks as ``(mean, variance)``."""

    mean: Tensor
    variance: Tensor

    @property
    def std(self) -> Tensor:
        """The square root of the variance."""
        return self.variance.sqrt()


def damage_moments(H: Tensor, g: Tensor, q: int, eta: float = 1.0) -> Moments:
    """Mean (Theorem 4.3) and exact variance of ``Q = (eta^2/2) g'P'HPg`` for symmetric ``H``.

    >>> mean, variance = damage_moments(torch.eye(1), torch.ones(1), q=1)
    >>> mean.item(), round(variance.item(), 4)  # x^2/2 with x = z^2/sqrt(3): E[z^8] = 105
    (0.5, 2.6667)
    """
    matrix, vector = check_curvature(H, g)
    product = matvec(matrix, vector)
    scalars = dot(vector, product), dot(product, product), trace(matrix)
    squares = matrix.square().sum((-2, -1)), dot(vector, vector)
    return damage_moments_from_scalars(*scalars, *squares, d=vector.shape[-1], q=q, eta=eta)


def damage_moments_from_scalars(
    ghg: Tensor,
    hg2: Tensor,
    trace: Tensor,
    trace_sq: Tensor,
    g2: Tensor,
    d: Count,
    q: Count,
    eta: float = 1.0,
) -> Moments:
    """The same from ``g'Hg``, ``|Hg|^2``, ``tr H``, ``tr H^2`` and ``|g|^2``: products suffice.

    With ``lam = g'Hg/|g|^2``, ``h2 = |Hu|^2 - lam^2``, ``t1 = tr H - lam``,
    ``t2 = tr H^2 - 2|Hu|^2 + lam^2`` and ``c = |g|^2/(q(q+d+1))``,

        E[x'Hx]   = c (q(q+2) lam + q t1)
        Var[x'Hx] = c^2 (8q(q+2)(q+3) lam^2 + 4q(q+2)(q+4) h2 + 8q(q+2) lam t1
                         + 2q t1^2 + 2q(q+2) t2)

    Tensors may hold one entry per block, ``d`` and ``q`` too. Scalars that are estimates need not
    belong to any matrix, and then the variance they give may be negative; it is not clipped.

    >>> one = torch.ones(1)
    >>> damage_moments_from_scalars(one, one, one, one, one, d=1, q=1).mean.item()
    0.5
    """
    k = check_count("q", q)
    n = k + check_count("d", d) + 1
    step = check_number("eta", eta, above=0)
    ghg, hg2, g2 = check_real("ghg", ghg), check_real("hg2", hg2), check_real("g2", g2)
    trace, trace_sq = check_real("trace", trace), check_real("trace_sq", trace_sq)
    across = g2 * trace - ghg
    mean = (k + 2) * ghg + across
    # The differences E[S^j S^k] - E[S^j] E[S^k] are expanded by hand: subtracting the square of the
    # mean from the second moment would lose digits where q is large and the variance small.
    spread = (
        8 * (k + 2) * (k + 3) * ghg**2
        + 4 * (k + 2) * (k + 4) * (g2 * hg2 - ghg**2)
        + 8 * (k + 2) * ghg * across
        + 2 * across**2
        + 2 * (k + 2) * (g2**2 * trace_sq - 2 * g2 * hg2 + ghg**2)
    )
    return Moments(step**2 / 2 * mean / n, step**4 / 4 * spread / (k * n**2))


def third_moment(H: Tensor, g: Tensor, r: Tensor, q: int) -> Tensor:
    """``E[(x'Hx)(r'x)]`` of the shaped gradient ``x = Pg`` and a fixed ``r``.

    With ``k = |g|/sqrt(q(q+d+1))``, ``rho = r.u`` and ``s_j = q(q+2)...(q+2j-2)``:
    ``k^3 (s_3 lam rho + 2 s_2 (Hu).(r - rho u) + s_2 rho t1)``.

    >>> round(third_moment(torch.eye(1), torch.ones(1), torch.ones(1), q=1).item(), 4)  # 15/3^1.5
    2.8868
    """
    terms, scale = _third_order_terms(H, g, r, q)
    s2, s3 = float(chi_square_moment(q, 2)), float(chi_square_moment(q, 3))
    return scale * (s3 * terms[0] + s2 * terms[1] + 2 * s2 * terms[2])


def quadratic_linear_covariance(H: Tensor, g: Tensor, r: Tensor, q: int) -> Tensor:
    """``Cov[x'Hx, r'x]`` of the shaped gradient: how the blocks' cross terms enter a variance.

    >>> H, one = torch.eye(1), torch.ones(1)
    >>> round(quadratic_linear_covariance(H, one, one, q=1).item(), 4)  # (15 - 3)/3^1.5
    2.3094
    """
    terms, scale = _third_order_terms(H, g, r, q)
    twice_s2 = 2.0 * chi_square_moment(q, 2)
    return scale * (2 * twice_s2 * terms[0] + 2.0 * q * terms[1] + twice_s2 * terms[2])


def _third_order_terms(
    H: Tensor, g: Tensor, r: Tensor, q: int
) -> tuple[tuple[Tensor, Tensor, Tensor], float]:
    """``|g|^3`` times ``lam rho``, ``rho t1``, ``(Hu).(r - rho u)``; and ``(q(q+d+1))^(-3/2)``."""
    matrix, vector = check_curvature(H, g)
    fixed, count = check_vector("r", r), check_positive_int("q", q)
    check_matching(matrix, fixed, ("H", "r"))
    product, g2, along = matvec(matrix, vector), dot(vector, vector), dot(fixed, vector)
    both = dot(vector, product) * along
    terms = both, along * g2 * trace(matrix) - both, g2 * dot(product, fixed) - both
    return terms, float(count * (count + vector.shape[-1] + 1)) ** -1.5


def chi_square_moment(q: int, order: int) -> int:
    """``E[S^k] = q (q+2) ... (q+2k-2)`` for ``S ~ chi2(q)``.

    >>> chi_square_moment(1, 4)
    105
    """
    result = 1
    for step in range(order):
        result *= q + 2 * step
    return result


def shape_covariance(g: Tensor, q: int) -> Tensor:
    """``Cov(Pg) = (gg' + |g|^2 I)/(q+d+1)`` (equations 46 and 104).

    >>> shape_covariance(torch.tensor([1.0, 0.0]), q=1).diagonal().tolist()
    [0.5, 0.25]
    """
    vector, count = check_vector("g", g), check_positive_int("q", q)
    d = vector.shape[-1]
    identity = torch.eye(d, dtype=vector.dtype, device=vector.device)
    spread = vector[..., :, None] * vector[..., None, :]
    return (spread + dot(vector, vector)[..., None, None] * identity) / (count + d + 1)


PROVEN_CONSTANT = 26.0


def psi(d: int, q: int, delta: float) -> float:
    """``sqrt((d + l)/q) + (d + l + 1)/q`` with ``l = log(1/delta)`` (equations 26 and 36).

    >>> round(psi(3, 4, math.exp(-1)), 9)
    2.25
    """
    total = check_positive_int("d", d) + math.log(1 / check_probability("delta", delta))
    count = check_positive_int("q", q)
    return math.sqrt(total / count) + (total + 1) / count


def covariance_deviation_bound(d: int, q: int, delta: float) -> float:
    """A number that ``|Z - I|_op`` stays below with probability ``1 - delta`` (equation 80).

    ``2e + e^2`` with ``e = (sqrt(d) + sqrt(2 log(2/delta)))/sqrt(q)``: no unknown constant.

    >>> round(covariance_deviation_bound(4, 100, 2 * math.exp(-2)), 9)
    0.96
    """
    reach = math.sqrt(2 * math.log(2 / check_probability("delta", delta)))
    spread = math.sqrt(check_positive_int("d", d)) + reach
    e = spread / math.sqrt(check_positive_int("q", q))
    return 2 * e + e**2


def deviation_bound(
    H: Tensor, g: Tensor, q: int, delta: float, eta: float = 1.0, constant: float = PROVEN_CONSTANT
) -> Tensor:
    """``B_q = C (eta^2/2) |g|^2 lambda_max (psi + psi^2)`` (Proposition B.1, equations 27 and 30).

    ``|Q - E[Q]|`` stays below it with probability ``1 - delta``, for positive semidefinite ``H``.

    >>> round(deviation_bound(torch.eye(2), torch.ones(2), 4, 0.1, constant=1.0).item(), 4)
    7.9455
    """
    matrix, vector = check_damage(H, g)
    scale = psi(vector.shape[-1], q, delta)
    factor = check_number("constant", constant, above=0) * (scale + scale**2)
    top = top_eigenvalue(matrix)
    return check_number("eta", eta, above=0) ** 2 / 2 * factor * dot(vector, vector) * top


def explicit_deviation_bound(
    H: Tensor, g: Tensor, q: int, delta: float, eta: float = 1.0
) -> Tensor:
    """Proposition B.1 before its constants are merged: the line above equation 85.

    ``(eta^2/2) |g|^2 ((2e + e^2) lambda_max + (lambda_max + tr H)/q) / kappa`` where ``e`` is
    ``covariance_deviation_bound``; for positive semidefinite ``H``.

    >>> bound = explicit_deviation_bound(torch.eye(2), torch.ones(2), 4, 0.1)
    >>> bool(bound < deviation_bound(torch.eye(2), torch.ones(2), 4, 0.1))
    True
    """
    matrix, vector = check_damage(H, g)
    d = vector.shape[-1]
    e = covariance_deviation_bound(d, q, delta)
    top = top_eigenvalue(matrix)
    operator = ((2 * e + e**2) * top + (top + trace(matrix)) / q) / kappa(d, q)
    return check_number("eta", eta, above=0) ** 2 / 2 * dot(vector, vector) * operator


def _check_deltas(delta: float | Sequence[float], blocks: int) -> list[float]:
    if not isinstance(delta, Sequence):
        return [check_probability("delta", delta)] * blocks
    if len(delta) != blocks:
        raise ValueError(f"delta must be a number or one per block ({blocks}), got {len(delta)}")
    return [check_probability(f"delta[{i}]", value) for i, value in enumerate(delta)]


def blockwise_deviation_bound(
    H: Tensor,
    g: Tensor,
    sizes: Sequence[int],
    q: int | Sequence[int],
    delta: float | Sequence[float],
    eta: float = 1.0,
    constant: float = PROVEN_CONSTANT,
) -> Tensor:
    """Bound on ``|Q_blk - E[Q_blk]|`` for symmetric ``H`` (Proposition C.2, equation 37).

    It holds with probability ``1 - sum_b delta_b``; a single ``delta`` is that of each block. The
    display of equation 37 has ``C`` in its first sum only, while its proof (equation 113) needs it
    in the second as well; without it the bound fails. Here ``C`` multiplies both.

    >>> H, g = torch.eye(2), torch.ones(2)
    >>> round(blockwise_deviation_bound(H, g, [1, 1], 4, 0.1, constant=1.0).item(), 4)
    5.9217
    """
    matrix, vector = check_curvature(H, g)
    blocks = Partition.of(sizes, q, vector.shape[-1])
    deltas = _check_deltas(delta, len(blocks.sizes))
    rows = zip(blocks.sizes, blocks.queries, deltas, strict=True)
    scales = [psi(d, count, level) for d, count, level in rows]
    total = _within_bound(matrix, vector, blocks, scales)
    total = total + 2 * _between_bound(matrix, vector, blocks, scales)
    factor = check_number("constant", constant, above=0)
    return factor * check_number("eta", eta, above=0) ** 2 / 2 * total


def _within_bound(H: Tensor, g: Tensor, blocks: Partition, scales: Sequence[float]) -> Tensor:
    rows = zip(blocks.diagonal(H), blocks.split(g), scales, strict=True)
    terms = [dot(v, v) * operator_norm(block) * (s + s**2) for block, v, s in rows]
    return torch.stack(terms).sum(0)


def _between_bound(H: Tensor, g: Tensor, blocks: Partition, scales: Sequence[float]) -> Tensor:
    total = torch.zeros((), dtype=H.dtype, device=H.device)
    norms = [length(part) for part in blocks.split(g)]
    for b, c in combinations(range(len(blocks.sizes)), 2):
        a = blocks.mean_factors[b] * blocks.mean_factors[c]
        reach = scales[b] + scales[c] + scales[b] * scales[c]
        block = H[..., blocks.slices[b], blocks.slices[c]]
        total = total + a * reach * norms[b] * norms[c] * operator_norm(block)
    return total
