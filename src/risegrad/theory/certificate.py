"""Does one batch gain what the mean promises? The accounting, and two certificates of the sign."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.checks import check_number, check_probability
from risegrad.theory.blockwise import blockwise_gap
from risegrad.theory.blockwise_variance import blockwise_moments
from risegrad.theory.calibration import kappa
from risegrad.theory.conditions import check_curvature, check_real, check_vector
from risegrad.theory.deviation import PROVEN_CONSTANT, deviation_bound
from risegrad.theory.drawn_shapes import check_directions, operator_fluctuation, raw_shape
from risegrad.theory.identities import damage_gap
from risegrad.theory.linear_algebra import matvec, quadratic
from risegrad.theory.smoothing import smoothing_damage_scale
from risegrad.theory.variance import damage_moments


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
    H: Tensor,
    g: Tensor,
    directions: Tensor,
    eta: float = 1.0,
    estimate: Tensor | None = None,
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
