"""Exposure to unknown curvature: second moments and their worst cases (Section 4.3, Appendix E).

The expected damage of a random direction ``x`` depends on its second moment ``M = E[xx']`` alone.
Against every curvature of a given trace, the worst case sees the largest eigenvalue of ``M``.
"""

import torch
from torch import Tensor

from risegrad.common.checks import check_number, check_positive_int
from risegrad.theory.calibration import tau
from risegrad.theory.conditions import *

__all__ = [
    "aligned_exposure",
    "aligned_minimax_risk",
    "blind_minimax_risk",
    "excess_risk",
    "exposed_damage",
    "fo_exposure",
    "isotropic_exposure",
    "keeps_alignment",
    "norm_matched_damage",
    "worst_case_curvature",
    "worst_case_risk",
    "zo_exposure",
]


def fo_exposure(g: Tensor) -> Tensor:
    """``M_FO = gg'``: all of the norm in one direction (Corollary 4.5).

    >>> fo_exposure(torch.tensor([1.0, 2.0])).tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """
    return outer(check_vector("g", g))


def isotropic_exposure(g: Tensor) -> Tensor:
    """``M* = (|g|^2/d) I``: the unique blind optimum (Theorem 4.4).

    >>> isotropic_exposure(torch.tensor([0.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    vector = check_vector("g", g)
    d = vector.shape[-1]
    return scaled_identity(vector.square().sum(-1) / d, d)


def zo_exposure(g: Tensor, q: int) -> Tensor:
    """``M_q = (1 - tau) gg' + tau (|g|^2/d) I`` (Corollary 4.5, equation 23).

    >>> zo_exposure(torch.tensor([0.0, 2.0]), q=1).tolist()
    [[1.0, 0.0], [0.0, 3.0]]
    """
    vector = check_vector("g", g)
    weight = tau(vector.shape[-1], check_positive_int("q", q))
    return (1 - weight) * fo_exposure(vector) + weight * isotropic_exposure(vector)


def exposed_damage(H: Tensor, M: Tensor, eta: float = 1.0) -> Tensor:
    """``E[Q] = (eta^2/2) tr(HM)`` for any direction with second moment ``M`` (equation 20).

    >>> exposed_damage(torch.eye(2), torch.diag(torch.tensor([1.0, 3.0]))).item()
    2.0
    """
    curvature, moment = check_symmetric("H", H), check_symmetric("M", M)
    if curvature.shape[-1] != moment.shape[-1]:
        shapes = f"{tuple(curvature.shape)} and {tuple(moment.shape)}"
        raise ValueError(f"H and M must have the same d, got shapes {shapes}")
    return check_number("eta", eta, above=0) ** 2 / 2 * (curvature * moment).sum((-2, -1))


def norm_matched_damage(H: Tensor, M: Tensor, g: Tensor, eta: float = 1.0) -> Tensor:
    """The same for an ``M`` that must be norm matched, ``tr M = |g|^2`` (equations 5 and 21).

    >>> g = torch.tensor([0.0, 2.0])
    >>> norm_matched_damage(torch.eye(2), zo_exposure(g, q=1), g).item()
    2.0
    """
    moment, budget = check_psd("M", M), check_vector("g", g).square().sum(-1)
    if bool(((trace(moment) - budget).abs() > RELATIVE_TOLERANCE * budget).any()):
        raise ValueError(
            f"M must be norm matched: trace |g|^2 = {budget.tolist()}, "
            f"got trace {trace(moment).tolist()}"
        )
    return exposed_damage(H, moment, eta)


def worst_case_curvature(M: Tensor, mean_curvature: float) -> Tensor:
    """``d lambda_avg uu'`` with ``u`` the top eigenvector of ``M``: it attains the worst case.

    >>> worst_case_curvature(torch.diag(torch.tensor([1.0, 3.0])), mean_curvature=0.5).tolist()
    [[0.0, 0.0], [0.0, 1.0]]
    """
    moment = check_psd("M", M)
    scale = moment.shape[-1] * check_number("mean_curvature", mean_curvature, above=0)
    return scale * outer(torch.linalg.eigh(moment).eigenvectors[..., -1])


def worst_case_risk(M: Tensor, mean_curvature: float, eta: float = 1.0) -> Tensor:
    """``sup_H (eta^2/2) tr(HM) = (eta^2/2) d lambda_avg lambda_max(M)`` (Theorem 4.4).

    The supremum is over positive semidefinite ``H`` with ``tr H = d lambda_avg``.

    >>> worst_case_risk(torch.diag(torch.tensor([1.0, 3.0])), mean_curvature=0.5).item()
    1.5
    """
    moment = check_psd("M", M)
    scale = moment.shape[-1] * check_number("mean_curvature", mean_curvature, above=0)
    half = check_number("eta", eta, above=0) ** 2 / 2
    return half * scale * top_eigenvalue(moment)


def blind_minimax_risk(g: Tensor, mean_curvature: float, eta: float = 1.0) -> Tensor:
    """``inf_M sup_H (eta^2/2) tr(HM) = (eta^2/2) lambda_avg |g|^2`` (Theorem 4.4, equation 22).

    >>> blind_minimax_risk(torch.tensor([0.0, 2.0]), mean_curvature=0.5).item()
    1.0
    """
    return aligned_minimax_risk(g, 0.0, mean_curvature, eta)


def excess_risk(M: Tensor, g: Tensor, mean_curvature: float, eta: float = 1.0) -> Tensor:
    """``R(M) - R(M*)``: risk above the blind optimum; ZO keeps ``1 - tau`` of FO's (equation 24).

    >>> g = torch.tensor([0.0, 2.0])
    >>> excess_risk(fo_exposure(g), g, 0.5).item(), excess_risk(zo_exposure(g, q=1), g, 0.5).item()
    (1.0, 0.5)
    """
    best = blind_minimax_risk(g, mean_curvature, eta)
    return worst_case_risk(M, mean_curvature, eta) - best


def check_alignment(alpha: float) -> float:
    """The aligned part of the mean, in [0, 1]."""
    value = check_number("alpha", alpha, at_least=0)
    if value > 1:
        raise ValueError(f"alpha must be in [0, 1], got {alpha}")
    return value


def aligned_minimax_risk(
    g: Tensor, alpha: float, mean_curvature: float, eta: float = 1.0
) -> Tensor:
    """The blind optimum among ``M >= alpha^2 gg'`` (Theorem E.2, equation 94).

    ``(eta^2/2) d lambda_avg |g|^2 max(alpha^2, 1/d)``: keeping up to ``1/sqrt(d)`` of the mean
    costs nothing.

    >>> aligned_minimax_risk(torch.tensor([0.0, 2.0]), alpha=1.0, mean_curvature=0.5).item()
    2.0
    """
    vector = check_nonzero("g", g)
    top = max(check_alignment(alpha) ** 2, 1 / vector.shape[-1]) * vector.square().sum(-1)
    scale = vector.shape[-1] * check_number("mean_curvature", mean_curvature, above=0)
    return check_number("eta", eta, above=0) ** 2 / 2 * scale * top


def aligned_exposure(g: Tensor, alpha: float) -> Tensor:
    """A second moment that attains the aligned optimum (Theorem E.2, equation 95).

    >>> aligned_exposure(torch.tensor([0.0, 2.0]), alpha=1.0).tolist()
    [[0.0, 0.0], [0.0, 4.0]]
    """
    vector, kept = check_nonzero("g", g), check_alignment(alpha) ** 2
    d = vector.shape[-1]
    if kept * d <= 1:
        return isotropic_exposure(vector)
    # Past 1/d the rest of the norm is spread evenly across g; d = 1 never comes here.
    across = d * isotropic_exposure(vector) - fo_exposure(vector)
    return kept * fo_exposure(vector) + (1 - kept) / (d - 1) * across


def keeps_alignment(M: Tensor, g: Tensor, alpha: float) -> bool:
    """Whether ``M`` is norm matched and ``M >= alpha^2 gg'`` (equation 93).

    >>> g = torch.tensor([0.0, 2.0])
    >>> keeps_alignment(isotropic_exposure(g), g, 0.5), keeps_alignment(isotropic_exposure(g), g, 1)
    (True, False)
    """
    moment, vector = check_psd("M", M), check_nonzero("g", g)
    budget = vector.square().sum(-1)
    rest = torch.linalg.eigvalsh(moment - check_alignment(alpha) ** 2 * outer(vector))[..., 0]
    matched = (trace(moment) - budget).abs() <= RELATIVE_TOLERANCE * budget
    return bool((matched & (rest >= -RELATIVE_TOLERANCE * budget)).all())
