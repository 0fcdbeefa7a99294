"""The scalars of one block that everything else uses: kappa, tau and the mean factor.

For a block of dimension ``d`` shaped with ``q`` random directions (the paper, Section 3):

    kappa = (q + d + 1) / q          how much the raw shape inflates the squared norm
    tau   = d / (q + d + 1)          how far curvature is mixed towards its average
    a     = kappa ** -0.5            what remains of the mean after norm matching

Each function takes plain numbers or tensors of them (one entry per block).
"""

from typing import TypeVar

from torch import Tensor

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
