"""Randomized in a metric: ``x = kappa^(-1/2) P^(1/2) Z P^(1/2) g`` (beyond the paper).

``P`` is symmetric and positive semidefinite, ``Z`` the raw shape of ``q`` directions. ``P = I`` is
RISE, ``q -> infinity`` the step ``P g`` without noise, and ``P = (H + rho I)^(-1)`` makes both of
them informed. ``kappa`` matches the norm *in the metric*, ``E[x'P^(-1)x] = g'Pg``; the plain norm
of ``x`` is ``metric_squared_norm``.
"""

import torch
from torch import Tensor

from risegrad.common.checks import check_number, check_positive_int
from risegrad.theory.calibration import kappa, mean_factor
from risegrad.theory.conditions import check_matching, check_nonzero, check_psd, check_vector
from risegrad.theory.drawn_shapes import check_directions, raw_shape
from risegrad.theory.exposure import exposed_damage
from risegrad.theory.filters import ridge
from risegrad.theory.linear_algebra import dot, matvec, outer, quadratic, trace


def ridge_metric(H: Tensor, rho: float) -> Tensor:
    """``P = (H + rho I)^(-1)``, the metric of the ridge step.

    >>> ridge_metric(torch.diag(torch.tensor([0.0, 3.0])), rho=1.0).diagonal().tolist()
    [1.0, 0.25]
    """
    values, vectors = torch.linalg.eigh(check_psd("H", H))
    factors = ridge(rho)(values.clamp_min(0))
    metric: Tensor = (vectors * factors[..., None, :]) @ vectors.mT
    return metric


def metric_step(P: Tensor, g: Tensor, directions: Tensor) -> Tensor:
    """``kappa^(-1/2) P^(1/2) Z P^(1/2) g`` of given ``directions`` (..., q, d).

    >>> P, g = torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([2.0, 1.0])
    >>> metric_step(P, g, torch.ones(1, 2)).tolist()
    [2.0, 4.0]
    """
    metric, vector = _check_metric(P, g)
    rows = check_directions(directions, vector.shape[-1])
    values, vectors = torch.linalg.eigh(metric)
    root: Tensor = (vectors * values.clamp_min(0).sqrt()[..., None, :]) @ vectors.mT
    inflation = kappa(vector.shape[-1], rows.shape[-2])
    x: Tensor = matvec(root, matvec(raw_shape(rows), matvec(root, vector))) / inflation**0.5
    return x


def metric_mean(P: Tensor, g: Tensor, q: int) -> Tensor:
    """``E[x] = a P g`` with ``a = sqrt(q/(q+d+1))``.

    >>> metric_mean(torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([2.0, 1.0]), q=1).tolist()
    [1.0, 2.0]
    """
    metric, vector = _check_metric(P, g)
    return mean_factor(vector.shape[-1], check_positive_int("q", q)) * matvec(metric, vector)


def metric_second_moment(P: Tensor, g: Tensor, q: int) -> Tensor:
    """``E[xx'] = ((q+1) Pgg'P + (g'Pg) P)/(q+d+1)``.

    >>> metric_second_moment(torch.eye(2), torch.tensor([0.0, 2.0]), q=1).tolist()
    [[1.0, 0.0], [0.0, 3.0]]
    """
    metric, vector = _check_metric(P, g)
    count = check_positive_int("q", q)
    spread = quadratic(metric, vector)[..., None, None] * metric
    signal = (count + 1) * outer(matvec(metric, vector))
    return (signal + spread) / (count + vector.shape[-1] + 1)


def metric_squared_norm(P: Tensor, g: Tensor, q: int) -> Tensor:
    """``E|x|^2 = ((q+1) |Pg|^2 + (g'Pg) tr P)/(q+d+1)``: |g|^2 for ``P = I`` only.

    >>> metric_squared_norm(2 * torch.eye(2), torch.tensor([0.0, 2.0]), q=1).item()
    16.0
    """
    return trace(metric_second_moment(P, g, q))


def metric_progress(P: Tensor, g: Tensor, q: int, eta: float = 1.0) -> Tensor:
    """``eta E[g'x] = eta a g'Pg``: the mean progress, never negative.

    >>> metric_progress(torch.eye(2), torch.tensor([0.0, 2.0]), q=1).item()
    2.0
    """
    return check_number("eta", eta, above=0) * dot(check_vector("g", g), metric_mean(P, g, q))


def metric_damage(H: Tensor, P: Tensor, g: Tensor, q: int, eta: float = 1.0) -> Tensor:
    """``E[Q] = (eta^2/2) ((q+1) g'PHPg + (g'Pg) tr(PH))/(q+d+1)``.

    For ``P = (H + rho I)^(-1)`` the noise costs the effective dimension ``tr(PH) = d_rho(H)``
    where RISE pays ``tr H``.

    >>> H = torch.diag(torch.tensor([1.0, 3.0]))
    >>> metric_damage(H, torch.eye(2), torch.tensor([0.0, 2.0]), q=1).item()
    5.0
    """
    return exposed_damage(check_psd("H", H), metric_second_moment(P, g, q), eta)


def metric_efficiency(H: Tensor, P: Tensor, g: Tensor, q: int) -> Tensor:
    """``E[g'x]^2/E[x'Hx] = q (g'Pg)^2/((q+1) g'PHPg + (g'Pg) tr(PH))``.

    Below that of ``P g`` for every ``q``, which it rises to as ``q`` grows: noise in the metric
    has its price at equal progress as RISE has.

    >>> metric_efficiency(torch.eye(2), torch.eye(2), torch.tensor([0.0, 2.0]), q=1).item()
    1.0
    """
    progress = metric_progress(P, check_nonzero("g", g), q)
    damage = 2 * metric_damage(H, P, g, q)
    if bool((damage <= 0).any()):
        raise ValueError(f"P must meet positive curvature in H, got damage {damage.min():.3g}")
    return progress**2 / damage


def _check_metric(P: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    metric, vector = check_psd("P", P), check_vector("g", g)
    check_matching(metric, vector, ("P", "g"))
    return metric, vector
