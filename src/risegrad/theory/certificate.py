"""Does one batch gain what the mean promises? The accounting, and two certificates of the sign.

What a finite smoothing radius adds (Lemma 3.1, Corollary B.2), with its constants.

The paper hides the constants in O-notation; its proof has them: the third and sixth moments of the
norm of a Gaussian vector. They are written out here, so the bounds are numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.checks import check_number, check_positive_int, check_probability
from risegrad.theory.blockwise import blockwise_gap, blockwise_moments
from risegrad.theory.calibration import kappa
from risegrad.theory.conditions import *
from risegrad.theory.deviation import PROVEN_CONSTANT, damage_moments, deviation_bound
from risegrad.theory.identities import damage_gap
from risegrad.theory.shapes import check_directions, operator_fluctuation, raw_shape

__all__ = [
    "BoundCertificate",
    "RealizedGap",
    "SignCertificate",
    "SmoothingRisk",
    "blockwise_sign_certificate",
    "bound_certificate",
    "cantelli_certificate",
    "gaussian_norm_moment",
    "noise_second_moment",
    "norm_mismatch_bound",
    "perturbation",
    "realized_gap",
    "residual_bound",
    "residual_second_moment_bound",
    "sign_certificate",
    "smoothing_damage_bound",
    "smoothing_damage_scale",
]


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


@dataclass(frozen=True)
class RealizedGap:
    """``Q_FO - Q_hat = signal - sampling - smoothing``, exact on one batch (equation 19).

    ``signal`` is the mean gap ``G_q``, ``sampling`` the centered deviation of this batch,
    ``smoothing`` what the finite radius (or any other error of the estimate) added.
    """

    signal: Tensor
    sampling: Tensor
    smoothing: Tensor

    @property
    def total(self) -> Tensor:
        """``signal - sampling - smoothing``."""
        return self.signal - self.sampling - self.smoothing


def realized_gap(
    H: Tensor, g: Tensor, directions: Tensor, eta: float = 1.0, estimate: Tensor | None = None
) -> RealizedGap:
    """Account for the gap of one given batch (equations 18, 19 and 78).

    ``directions`` (..., q, d) made the batch; ``estimate`` is the raw finite-difference gradient
    that came of it. Without it the gradient was exact and ``smoothing`` is zero.

    >>> gap = realized_gap(torch.eye(1), torch.ones(1), torch.ones(3, 1))
    >>> round(gap.signal.item(), 9), round(gap.sampling.item(), 9), gap.smoothing.item()
    (0.0, -0.2, 0.0)
    """
    matrix, vector = check_curvature(H, g)
    rows = check_directions(directions, vector.shape[-1])
    half, q = check_number("eta", eta, above=0) ** 2 / 2, rows.shape[-2]
    sampling = half * quadratic(operator_fluctuation(matrix, rows), vector)
    smoothing = torch.zeros_like(sampling)
    if estimate is not None:
        exact = matvec(raw_shape(rows), vector)
        change = quadratic(matrix, check_vector("estimate", estimate)) - quadratic(matrix, exact)
        smoothing = half * change / kappa(vector.shape[-1], q)
    return RealizedGap(damage_gap(matrix, vector, q, eta), sampling, smoothing)


@dataclass(frozen=True)
class BoundCertificate:
    """``|realized gap - signal| <= radius`` with at least ``probability`` (Corollary B.3).

    ``certified`` where ``|signal| > radius``: there the realized gap has the sign of ``signal``.
    """

    signal: Tensor
    radius: Tensor
    probability: float

    @property
    def certified(self) -> Tensor:
        """Whether the signal is larger than the bound on everything else."""
        return self.signal.abs() > self.radius


@dataclass(frozen=True)
class SmoothingRisk:
    """What estimating gradients from losses adds to a certificate; zero for exact gradients."""

    smoothness: float = 0.0
    """The Lipschitz constant of the loss's gradient."""
    mu: float = 0.0
    """The distance at which losses are taken."""
    delta_mu: float | None = None
    """The failure probability spent on it; needed where the other two are not zero."""


def bound_certificate(
    H: Tensor,
    g: Tensor,
    q: int,
    delta: float,
    eta: float = 1.0,
    constant: float = PROVEN_CONSTANT,
    smoothing: SmoothingRisk | None = None,
) -> BoundCertificate:
    """The sign certificate in the paper's form, ``C`` given (Corollary B.3, equation 32).

    ``radius = B_q(delta) + B_mu/delta_mu``; without ``smoothing`` gradients are exact.

    >>> H = torch.diag(torch.tensor([0.0, 1.0]))
    >>> bound_certificate(H, torch.tensor([0.0, 1.0]), q=4, delta=0.1).certified.item()
    False
    """
    level = check_probability("delta", delta)
    radius = deviation_bound(H, g, q, level, eta, constant)
    signal = damage_gap(H, g, q, eta)
    risk = smoothing or SmoothingRisk()
    scale = smoothing_damage_scale(H, g, q, risk.smoothness, risk.mu, eta, constant)
    if risk.smoothness * risk.mu == 0:
        return BoundCertificate(signal, radius, 1 - level)
    spent = check_probability("delta_mu", risk.delta_mu)
    return BoundCertificate(signal, radius + scale / spent, max(0.0, 1 - level - spent))


@dataclass(frozen=True)
class SignCertificate:
    """One batch's gap has the sign of ``signal`` with at least ``probability`` (Cantelli).

    Needs the exact ``variance`` of the damage and no constant that nobody knows.
    """

    signal: Tensor
    variance: Tensor
    probability: Tensor

    def certified(self, delta: float) -> Tensor:
        """Where the sign is certain up to a failure probability ``delta``."""
        return self.probability >= 1 - check_probability("delta", delta)


def cantelli_certificate(
    signal: Tensor, variance: Tensor, slack: float | Tensor = 0.0, slack_failure: float = 0.0
) -> SignCertificate:
    """``P(same sign) >= G^2/(var + G^2)`` for a gap of mean ``G`` and any law of that variance.

    A further perturbation that stays below ``slack`` but for a probability ``slack_failure`` (by
    Markov: ``smoothing_damage_bound/slack_failure``) shortens the margin to ``|G| - slack``.

    >>> cantelli_certificate(torch.tensor(3.0), torch.tensor(1.0)).probability.item()
    0.9
    """
    mean, spread = check_real("signal", signal), check_real("variance", variance)
    if bool((spread < 0).any()):
        raise ValueError(f"variance must be >= 0, got {spread.min():.3g}")
    lost = check_number("slack_failure", slack_failure, at_least=0)
    margin = (mean.abs() - slack).clamp_min(0)
    # No margin certifies nothing, also where the variance is zero and the ratio is 0/0.
    likely = torch.where(margin > 0, margin**2 / (spread + margin**2), 0.0)
    return SignCertificate(mean, spread, (likely - lost).clamp_min(0))


def sign_certificate(H: Tensor, g: Tensor, q: int, eta: float = 1.0) -> SignCertificate:
    """The usable sign certificate of one global batch, from the exact variance.

    >>> H = torch.diag(torch.tensor([0.0] * 63 + [1.0]))
    >>> certificate = sign_certificate(H, H[-1], q=4)
    >>> round(certificate.probability.item(), 3), certificate.certified(0.1).item()
    (0.979, True)
    """
    variance = damage_moments(H, g, q, eta).variance
    return cantelli_certificate(damage_gap(H, g, q, eta), variance)


def blockwise_sign_certificate(
    H: Tensor, g: Tensor, sizes: Sequence[int], q: int | Sequence[int], eta: float = 1.0
) -> SignCertificate:
    """The same for one blockwise batch.

    >>> H = torch.diag(torch.tensor([0.0] * 63 + [1.0]))
    >>> blockwise_sign_certificate(H, H[-1], [64], q=4).certified(0.1).item()
    True
    """
    variance = blockwise_moments(H, g, sizes, q, eta).variance
    return cantelli_certificate(blockwise_gap(H, g, sizes, q, eta), variance)
