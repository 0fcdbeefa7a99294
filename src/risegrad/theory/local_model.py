"""The local model of forgetting: what a displacement does to the historical loss (Section 2)."""

from collections.abc import Callable

from torch import Tensor

from risegrad.common.checks import check_number
from risegrad.theory.conditions import (
    check_curvature,
    check_matching,
    check_nonzero,
    check_real,
    check_symmetric,
    check_vector,
)
from risegrad.theory.linear_algebra import length, matvec, quadratic, trace


def forgetting(loss: Callable[[Tensor], Tensor], theta: Tensor, displacement: Tensor) -> Tensor:
    """Induced forgetting ``F(D) = L(theta + D) - L(theta)`` (equation 1).

    >>> import torch
    >>> square = lambda x: x.square().sum(-1)
    >>> forgetting(square, torch.zeros(2), torch.tensor([3.0, 4.0])).item()
    25.0
    """
    theta, displacement = check_vector("theta", theta), check_vector("displacement", displacement)
    return loss(theta + displacement) - loss(theta)


def taylor_remainder_bound(
    displacement: Tensor, gradient_norm: float, hessian_lipschitz: float
) -> Tensor:
    """``|F(D) - D'HD/2| <= eps |D| + (M/6) |D|^3`` (equation 2).

    ``eps`` bounds the gradient of the historical loss, ``M`` is a Lipschitz constant of its Hessian
    near ``theta``; 1/6 is the constant that the paper leaves inside its O-notation.

    >>> import torch
    >>> taylor_remainder_bound(torch.tensor([2.0]), gradient_norm=0.5, hessian_lipschitz=3.0)
    tensor(5., dtype=torch.float64)
    """
    eps = check_number("gradient_norm", gradient_norm, at_least=0)
    lipschitz = check_number("hessian_lipschitz", hessian_lipschitz, at_least=0)
    size = length(check_vector("displacement", displacement))
    return eps * size + lipschitz / 6 * size**3


def quadratic_damage(H: Tensor, displacement: Tensor) -> Tensor:
    """``Q(D) = D'HD / 2`` (equation 3).

    >>> import torch
    >>> quadratic_damage(torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([2.0, 2.0])).item()
    8.0
    """
    matrix, vector = check_symmetric("H", H), check_vector("displacement", displacement)
    check_matching(matrix, vector, ("H", "displacement"))
    return quadratic(matrix, vector) / 2


def shaped_damage(H: Tensor, P: Tensor, g: Tensor, eta: float = 1.0) -> Tensor:
    """``Q(-eta P g) = (eta^2/2) g'P'HPg`` (equation 4); ``P = I`` is FO.

    >>> import torch
    >>> H = torch.diag(torch.tensor([1.0, 3.0]))
    >>> shaped_damage(H, 2 * torch.eye(2), torch.tensor([1.0, 1.0]), eta=0.5).item()
    2.0
    """
    step = check_number("eta", eta, above=0)
    vector = check_vector("g", g)
    return quadratic_damage(H, -step * matvec(check_real("P", P), vector))


def fo_damage(H: Tensor, g: Tensor, eta: float = 1.0) -> Tensor:
    """``Q_FO = Q(-eta g) = (eta^2/2) g'Hg`` (equation 15).

    >>> import torch
    >>> fo_damage(torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([1.0, 1.0])).item()
    2.0
    """
    matrix, vector = check_curvature(H, g)
    return check_number("eta", eta, above=0) ** 2 / 2 * quadratic(matrix, vector)


def directional_curvature(H: Tensor, g: Tensor) -> Tensor:
    """``lambda = g'Hg / |g|^2`` (equation 14).

    >>> import torch
    >>> directional_curvature(torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([0.0, 5.0])).item()
    3.0
    """
    matrix, vector = check_curvature(H, check_nonzero("g", g))
    return quadratic(matrix, vector) / vector.square().sum(-1)


def average_curvature(H: Tensor) -> Tensor:
    """``lambda_avg = tr H / d`` (equations 11 and 14).

    >>> import torch
    >>> average_curvature(torch.diag(torch.tensor([1.0, 3.0]))).item()
    2.0
    """
    matrix = check_symmetric("H", H)
    return trace(matrix) / matrix.shape[-1]
