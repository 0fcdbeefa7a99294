"""The local model of forgetting (Section 2), and what norm matching keeps and changes of it.

In expectation: Lemma 3.2, Theorems 4.1 and 4.3.
"""

from collections.abc import Callable

from torch import Tensor

from risegrad.common.checks import check_number, check_positive_int
from risegrad.theory.calibration import kappa, mean_factor, tau
from risegrad.theory.conditions import *

__all__ = [
    "average_curvature",
    "damage_gap",
    "directional_curvature",
    "expected_curvature",
    "expected_damage",
    "fo_damage",
    "forgetting",
    "full_information_gap",
    "full_information_reference",
    "gap_from_scalars",
    "norm_matched_mean",
    "norm_matched_squared_norm",
    "quadratic_damage",
    "raw_expected_curvature",
    "raw_mean",
    "raw_squared_norm",
    "relative_reduction",
    "shaped_damage",
    "spectral_equalization",
    "taylor_remainder_bound",
]


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


def raw_mean(g: Tensor) -> Tensor:
    """``E[Zg] = g``: the raw shape is aligned with FO on average (Lemma 3.2, equation 8).

    >>> import torch
    >>> raw_mean(torch.tensor([1.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    return check_vector("g", g).clone()


def raw_squared_norm(g: Tensor, q: int) -> Tensor:
    """``E|Zg|^2 = kappa |g|^2``: the raw shape inflates the norm (Lemma 3.2, equation 8).

    >>> import torch
    >>> raw_squared_norm(torch.tensor([1.0, 0.0, 0.0]), q=4).item()
    2.0
    """
    vector = check_vector("g", g)
    return kappa(vector.shape[-1], check_positive_int("q", q)) * vector.square().sum(-1)


def norm_matched_mean(g: Tensor, q: int) -> Tensor:
    """``E[Pg] = sqrt(q/(q+d+1)) g``: what norm matching leaves (Lemma 3.2, equation 9).

    >>> import torch
    >>> norm_matched_mean(torch.tensor([2.0, 0.0]), q=1).tolist()
    [1.0, 0.0]
    """
    vector = check_vector("g", g)
    return mean_factor(vector.shape[-1], check_positive_int("q", q)) * vector


def norm_matched_squared_norm(g: Tensor) -> Tensor:
    """``E|Pg|^2 = |g|^2`` for every q (Lemma 3.2, equation 9).

    >>> import torch
    >>> norm_matched_squared_norm(torch.tensor([3.0, 4.0])).item()
    25.0
    """
    return check_vector("g", g).square().sum(-1)


def raw_expected_curvature(H: Tensor, q: int) -> Tensor:
    """``E[Z'HZ] = ((q+1)/q) H + (tr H/q) I`` (equations 66-68).

    >>> import torch
    >>> raw_expected_curvature(torch.diag(torch.tensor([1.0, 3.0])), q=2).diagonal().tolist()
    [3.5, 6.5]
    """
    matrix, count = check_symmetric("H", H), check_positive_int("q", q)
    floor = scaled_identity(trace(matrix) / count, matrix.shape[-1])
    return (count + 1) / count * matrix + floor


def expected_curvature(H: Tensor, q: int) -> Tensor:
    """``E[P'HP] = (1 - tau) H + tau (tr H/d) I`` for symmetric ``H`` (Theorem 4.1, equation 12).

    >>> import torch
    >>> expected_curvature(torch.diag(torch.tensor([0.0, 4.0])), q=1).diagonal().tolist()
    [1.0, 3.0]
    """
    matrix = check_symmetric("H", H)
    d = matrix.shape[-1]
    weight = tau(d, check_positive_int("q", q))
    return (1 - weight) * matrix + scaled_identity(weight * average_curvature(matrix), d)


def spectral_equalization(eigenvalues: Tensor, q: int) -> Tensor:
    """Eigenvalues of ``E[P'HP]``: each keeps ``1 - tau`` of its deviation (Corollary 4.2).

    ``eigenvalues`` (..., d) are those of ``H``; the eigenvectors stay as they are.

    >>> import torch
    >>> spectral_equalization(torch.tensor([0.0, 4.0]), q=1).tolist()
    [1.0, 3.0]
    """
    values = check_vector("eigenvalues", eigenvalues)
    weight = tau(values.shape[-1], check_positive_int("q", q))
    return (1 - weight) * values + weight * values.mean(-1, keepdim=True)


def full_information_reference(H: Tensor, rotation: Tensor | None = None) -> Tensor:
    """``P* = sqrt(tr H/d) H^(-1/2) O``, which makes ``P*'HP*`` isotropic (equation 61).

    A target that needs the eigensystem of a positive definite ``H``; ``O = I`` when no ``rotation``
    is given.

    >>> import torch
    >>> full_information_reference(torch.diag(torch.tensor([1.0, 4.0]))).diagonal().square()
    tensor([2.5000, 0.6250], dtype=torch.float64)
    """
    matrix = check_positive_definite("H", H)
    shape = average_curvature(matrix).sqrt()[..., None, None] * inverse_root(matrix)
    return shape if rotation is None else shape @ check_real("rotation", rotation)


def full_information_gap(H: Tensor, g: Tensor, eta: float = 1.0) -> Tensor:
    """``Q_FO - Q(-eta P* g) = (eta^2/2) |g|^2 (lambda - lambda_avg)`` (equation 62).

    >>> import torch
    >>> H = torch.diag(torch.tensor([1.0, 3.0]))
    >>> full_information_gap(H, torch.tensor([0.0, 2.0])).item()
    2.0
    """
    matrix, vector = check_curvature(H, g)
    excess = quadratic(matrix, vector) - average_curvature(matrix) * vector.square().sum(-1)
    return check_number("eta", eta, above=0) ** 2 / 2 * excess


def damage_gap(H: Tensor, g: Tensor, q: int, eta: float = 1.0) -> Tensor:
    """``Q_FO - E[Q_ZO] = (eta^2/2) tau |g|^2 (lambda - lambda_avg)`` (Theorem 4.3, equation 16).

    Positive exactly where the gradient meets above-average curvature.

    >>> import torch
    >>> H = torch.diag(torch.tensor([1.0, 3.0]))
    >>> damage_gap(H, torch.tensor([0.0, 2.0]), q=1), damage_gap(H, torch.tensor([2.0, 0.0]), q=1)
    (tensor(1., dtype=torch.float64), tensor(-1., dtype=torch.float64))
    """
    vector = check_vector("g", g)
    weight = tau(vector.shape[-1], check_positive_int("q", q))
    return weight * full_information_gap(H, vector, eta)


def expected_damage(H: Tensor, g: Tensor, q: int, eta: float = 1.0) -> Tensor:
    """``E[Q_ZO] = (eta^2/2) |g|^2 ((1 - tau) lambda + tau lambda_avg)`` (Theorem 4.3).

    >>> import torch
    >>> expected_damage(torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([0.0, 2.0]), q=1).item()
    5.0
    """
    return fo_damage(H, g, eta) - damage_gap(H, g, q, eta)


def relative_reduction(H: Tensor, g: Tensor, q: int) -> Tensor:
    """``tau (1 - lambda_avg/lambda)``: the part of FO's damage that goes (equation 17).

    >>> import torch
    >>> H = torch.diag(torch.tensor([0.0, 4.0]))
    >>> relative_reduction(H, torch.tensor([0.0, 2.0]), q=1).item()
    0.25
    """
    vector = check_nonzero("g", g)
    along = directional_curvature(H, vector)
    if bool((along <= 0).any()):
        least = along.min()
        raise ValueError(f"g must meet positive curvature g'Hg/|g|^2 in H, got {least:.3g}")
    weight = tau(vector.shape[-1], check_positive_int("q", q))
    return weight * (1 - average_curvature(H) / along)


def gap_from_scalars(
    ghg: Tensor, trace: Tensor, g2: Tensor, d: Count, q: Count, eta: float = 1.0
) -> Tensor:
    """The gap from ``g'Hg``, ``tr H`` and ``|g|^2``: one entry per block is natural.

    Read per block, with the block's own scalars, this is the score of equation 45.

    >>> import torch
    >>> scalars = torch.tensor([12.0]), torch.tensor([4.0]), torch.tensor([4.0])
    >>> gap_from_scalars(*scalars, d=2, q=1).item()
    1.0
    """
    dims, counts = check_count("d", d), check_count("q", q)
    ghg, trace, g2 = check_real("ghg", ghg), check_real("trace", trace), check_real("g2", g2)
    half = check_number("eta", eta, above=0) ** 2 / 2
    return half * (dims * ghg - trace * g2) / (counts + dims + 1)
