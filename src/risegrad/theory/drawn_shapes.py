"""The shapes that a given batch of directions makes, and how far they are from their mean.

Nothing here draws: directions come in, so that every identity can be checked on the very batch an
algorithm used. Directions have shape (..., q, d).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from risegrad.common.checks import check_number
from risegrad.theory.calibration import kappa
from risegrad.theory.conditions import check_real, check_symmetric, check_vector
from risegrad.theory.linear_algebra import scaled_identity, trace


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
