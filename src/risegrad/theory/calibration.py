"""The scalars of one block that everything else uses: kappa, tau and the mean factor.

For a block of dimension ``d`` shaped with ``q`` random directions (the paper, Section 3):

    kappa = (q + d + 1) / q          how much the raw shape inflates the squared norm
    tau   = d / (q + d + 1)          how far curvature is mixed towards its average
    a     = kappa ** -0.5            what remains of the mean after norm matching

Each function takes plain numbers or tensors of them (one entry per block).
"""

import math
from typing import TypeVar

from torch import Tensor

from risegrad.common.checks import check_positive_int, check_probability

Scalar = TypeVar("Scalar", float, Tensor)


def kappa(d: Scalar, q: Scalar) -> Scalar:
    """Norm inflation of the raw shape: ``E|Zg|^2 = kappa |g|^2``.

    >>> kappa(3, 4)
    2.0
    """
    return (q + d + 1) / q


def tau(d: Scalar, q: Scalar) -> Scalar:
    """Mixing weight: the mean shaped curvature is ``(1 - tau) H + tau (tr H / d) I``.

    >>> tau(3, 4)
    0.375
    """
    return d / (q + d + 1)


def mean_factor(d: Scalar, q: Scalar) -> Scalar:
    """What norm matching leaves of the mean: ``E[x] = a g`` with ``a = sqrt(q / (q + d + 1))``.

    >>> round(mean_factor(8192, 4), 3)
    0.022
    """
    factor: Scalar = (q / (q + d + 1)) ** 0.5
    return factor


def q_for(mean_factor: float, d: int) -> int:
    """The least ``q`` whose mean factor reaches ``mean_factor`` in a block of dimension ``d``.

    ``q = a^2 (d+1)/(1 - a^2)``, rounded up.

    >>> q_for(0.5, d=8192)
    2731
    """
    a2 = check_probability("mean_factor", mean_factor) ** 2
    # A hair less than the quotient: rounding must not ask for one direction too many.
    return max(1, math.ceil(a2 * (check_positive_int("d", d) + 1) / (1 - a2) - 1e-9))


def block_size_for(mean_factor: float, q: int) -> int:
    """The largest block that keeps ``mean_factor`` with ``q`` directions; 0 if none does.

    ``d = q (1/a^2 - 1) - 1``, rounded down.

    >>> block_size_for(0.5, q=4), block_size_for(0.9, q=1)
    (11, 0)
    """
    a2 = check_probability("mean_factor", mean_factor) ** 2
    return max(0, math.floor(check_positive_int("q", q) * (1 / a2 - 1) - 1 + 1e-9))
