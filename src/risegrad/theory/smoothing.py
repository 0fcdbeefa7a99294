"""What a finite smoothing radius adds (Lemma 3.1, Corollary B.2), with its constants.

The paper hides the constants in O-notation; its proof has them: the third and sixth moments of the
norm of a Gaussian vector. They are written out here, so the bounds are numbers.
"""

import math

from torch import Tensor

from risegrad.common.checks import check_number, check_positive_int
from risegrad.theory.calibration import kappa
from risegrad.theory.conditions import check_damage, check_vector
from risegrad.theory.deviation import PROVEN_CONSTANT
from risegrad.theory.linear_algebra import length, top_eigenvalue


def gaussian_norm_moment(d: int, order: int) -> float:
    """``E|z|^k = 2^(k/2) Gamma((d+k)/2) / Gamma(d/2)`` for ``z ~ N(0, I_d)``.

    >>> round(gaussian_norm_moment(3, 6), 9)  # d(d+2)(d+4)
    105.0
    """
    d, order = check_positive_int("d", d), check_positive_int("order", order)
    logarithm = math.lgamma((d + order) / 2) - math.lgamma(d / 2)
    return math.exp(logarithm + order / 2 * math.log(2))


def residual_bound(d: int, smoothness: float, mu: float) -> float:
    """``E|r_mu| <= (L mu/2) E|z|^3`` (Lemma 3.1, equations 7 and 53).

    Attained in one dimension by ``f(t) = (L/2) t|t|``.

    >>> round(residual_bound(1, smoothness=2.0, mu=1.0), 4)  # 2 sqrt(2/pi)
    1.5958
    """
    level = check_number("smoothness", smoothness, at_least=0)
    return level * check_number("mu", mu, at_least=0) / 2 * gaussian_norm_moment(d, 3)


def residual_second_moment_bound(d: int, smoothness: float, mu: float) -> float:
    """``E|r_mu|^2 <= (L^2 mu^2/4) d(d+2)(d+4)`` (Lemma 3.1, equations 7 and 55).

    >>> round(residual_second_moment_bound(1, smoothness=2.0, mu=1.0), 9)
    15.0
    """
    level = check_number("smoothness", smoothness, at_least=0)
    radius = check_number("mu", mu, at_least=0)
    return (level * radius / 2) ** 2 * gaussian_norm_moment(d, 6)


def noise_second_moment(d: int, q: int, mu: float, noise_std: float) -> float:
    """``E|n_mu|^2 = sigma^2 d / (2 mu^2 q)`` from noisy function values (Appendix B, last part).

    An equality when every function value has independent noise of variance ``sigma^2``.

    >>> noise_second_moment(4, 2, mu=0.5, noise_std=1.0)
    4.0
    """
    radius = check_number("mu", mu, above=0)
    sigma = check_number("noise_std", noise_std, at_least=0)
    return sigma**2 * check_positive_int("d", d) / (2 * radius**2 * check_positive_int("q", q))


def perturbation(g: Tensor, q: int, smoothness: float, mu: float, noise_std: float = 0.0) -> Tensor:
    """``2 |g| sqrt(E|b|^2) + E|b|^2`` for the residual ``b = kappa^(-1/2) (r_mu + n_mu)``.

    The bracket of Corollary B.2 with its constants. The noise is centered given the directions, so
    the two second moments add.

    >>> import torch
    >>> perturbation(torch.ones(1), 1, smoothness=0.0, mu=1.0).item()
    0.0
    """
    vector = check_vector("g", g)
    d = vector.shape[-1]
    second = residual_second_moment_bound(d, smoothness, mu)
    if noise_std != 0:
        second += noise_second_moment(d, q, mu, noise_std)
    scaled = second / kappa(d, check_positive_int("q", q))
    return 2 * length(vector) * math.sqrt(scaled) + scaled


def smoothing_damage_bound(
    H: Tensor,
    g: Tensor,
    q: int,
    smoothness: float,
    mu: float,
    eta: float = 1.0,
    noise_std: float = 0.0,
) -> Tensor:
    """``E|Q_hat - Q| <= (eta^2/2) lambda_max (2|g| sqrt(E|b|^2) + E|b|^2)`` (Corollary B.2).

    For positive semidefinite ``H``; ``L = smoothness`` of the incoming loss, ``mu`` the radius.

    >>> import torch
    >>> bound = smoothing_damage_bound(torch.eye(1), torch.ones(1), 1, smoothness=2.0, mu=1.0)
    >>> round(bound.item(), 4)  # (2 sqrt(5) + 5)/2
    4.7361
    """
    matrix, vector = check_damage(H, g)
    top = top_eigenvalue(matrix)
    size = perturbation(vector, q, smoothness, mu, noise_std)
    return check_number("eta", eta, above=0) ** 2 / 2 * top * size


def norm_mismatch_bound(
    g: Tensor, q: int, smoothness: float, mu: float, noise_std: float = 0.0
) -> Tensor:
    """``|E|x_hat|^2 - |g|^2| <= 2|g| sqrt(E|b|^2) + E|b|^2`` (Corollary B.2, equation 29).

    >>> import torch
    >>> round(norm_mismatch_bound(torch.ones(1), 1, smoothness=2.0, mu=1.0).item(), 4)
    9.4721
    """
    return perturbation(g, q, smoothness, mu, noise_std)


def smoothing_damage_scale(
    H: Tensor,
    g: Tensor,
    q: int,
    smoothness: float,
    mu: float,
    eta: float = 1.0,
    constant: float = PROVEN_CONSTANT,
) -> Tensor:
    """``B_mu`` in the paper's form, with its ``C`` (equations 28 and 31).

    ``C (eta^2/2) lambda_max (kappa^(-1/2) L mu d^(3/2) |g| + kappa^(-1) L^2 mu^2 d^3)``. Since
    ``d(d+2)(d+4) <= 15 d^3``, ``C = sqrt(15)`` is enough here; one ``C`` must serve both bounds of
    Corollary B.3, so the default is the larger one.

    >>> import torch
    >>> H, g = torch.eye(1), torch.ones(1)
    >>> paper = smoothing_damage_scale(H, g, 1, smoothness=2.0, mu=1.0, constant=math.sqrt(15))
    >>> bool(paper >= smoothing_damage_bound(H, g, 1, smoothness=2.0, mu=1.0))
    True
    """
    matrix, vector = check_damage(H, g)
    d = vector.shape[-1]
    level = check_number("smoothness", smoothness, at_least=0)
    size = level * check_number("mu", mu, at_least=0) * d * math.sqrt(d)
    size = size / math.sqrt(kappa(d, check_positive_int("q", q)))
    top = top_eigenvalue(matrix)
    factor = check_number("constant", constant, above=0)
    factor *= check_number("eta", eta, above=0) ** 2 / 2
    return factor * top * (size * length(vector) + size**2)
