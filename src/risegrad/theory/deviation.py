"""How far one batch may stray from the mean, with high probability (Propositions B.1 and C.2).

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

import torch
from torch import Tensor

from risegrad.common.checks import check_number, check_positive_int, check_probability
from risegrad.theory.calibration import kappa
from risegrad.theory.conditions import check_curvature, check_damage
from risegrad.theory.linear_algebra import dot, length, operator_norm, top_eigenvalue, trace
from risegrad.theory.partition import Partition

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
    H: Tensor,
    g: Tensor,
    q: int,
    delta: float,
    eta: float = 1.0,
    constant: float = PROVEN_CONSTANT,
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
