"""Steps that know the curvature: filters, in a metric, of a layer (beyond the paper).

Steps that filter the gradient by the curvature, ``x = f(H) g`` (beyond the paper).

``f`` acts on the eigenvalues. Where it falls while ``lambda f(lambda)`` rises, the step never does
more damage than FO, neither at equal norm nor at equal progress, whatever the gradient.

Randomized in a metric: ``x = kappa^(-1/2) P^(1/2) Z P^(1/2) g`` (beyond the paper).

``P`` is symmetric and positive semidefinite, ``Z`` the raw shape of ``q`` directions. ``P = I`` is
RISE, ``q -> infinity`` the step ``P g`` without noise, and ``P = (H + rho I)^(-1)`` makes both of
them informed. ``kappa`` matches the norm *in the metric*, ``E[x'P^(-1)x] = g'Pg``; the plain norm
of ``x`` is ``metric_squared_norm``.

Layers: curvature ``D (x) S`` of a weight, its step, and what it says of LoRA (beyond the paper).

A change ``dW`` (outputs, inputs) of a weight does the damage ``tr(D dW S dW')/2``, ``D`` the second
moment of the output gradients and ``S`` that of the inputs. Row by row, as torch stores a matrix,
``vec(dW)' (D (x) S) vec(dW)`` is the same number.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.checks import check_number, check_positive_int
from risegrad.theory.calibration import kappa, mean_factor
from risegrad.theory.conditions import *
from risegrad.theory.exposure import exposed_damage
from risegrad.theory.identities import directional_curvature
from risegrad.theory.progress import efficiency_gain
from risegrad.theory.shapes import check_directions, raw_shape

__all__ = [
    "FilterCertificate",
    "LoraFactors",
    "SpectralFilter",
    "effective_dimension",
    "filter_certificate",
    "filtered_step",
    "kronecker_damage",
    "kronecker_step",
    "lora_factors",
    "metric_damage",
    "metric_efficiency",
    "metric_mean",
    "metric_progress",
    "metric_second_moment",
    "metric_squared_norm",
    "metric_step",
    "ridge",
    "ridge_metric",
    "ridge_step",
]


SpectralFilter = Callable[[Tensor], Tensor]
"""From eigenvalues (..., d), small to large, to as many factors."""


def filtered_step(H: Tensor, g: Tensor, f: SpectralFilter) -> Tensor:
    """``f(H) g``: every eigendirection of ``g`` times ``f`` of its eigenvalue.

    >>> H, g = torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([1.0, 2.0])
    >>> filtered_step(H, g, lambda eigenvalues: eigenvalues**-0.5).tolist()
    [1.0, 1.0]
    """
    matrix, vector = check_damage(H, g)
    values, vectors = torch.linalg.eigh(matrix)
    return matvec(vectors, _factors(values.clamp_min(0), f) * matvec(vectors.mT, vector))


def _factors(values: Tensor, f: SpectralFilter) -> Tensor:
    factors = check_real("f(eigenvalues)", f(values))
    if factors.shape != values.shape:
        came = tuple(factors.shape)
        raise ValueError(f"f must return the shape {tuple(values.shape)} it is given, got {came}")
    return factors


def ridge(rho: float) -> SpectralFilter:
    """``f(lambda) = 1/(lambda + rho)``, the filter of a damped inverse; ``rho > 0``.

    >>> ridge(0.5)(torch.tensor([0.0, 1.5])).tolist()
    [2.0, 0.5]
    """
    damping = check_number("rho", rho, above=0)
    return lambda values: 1 / (values + damping)


def ridge_step(H: Tensor, g: Tensor, rho: float) -> Tensor:
    """``(H + rho I)^(-1) g``: the least damage at its progress among steps of no greater norm.

    Small ``rho`` protects hard, up to the best step; large ``rho`` is FO up to the length.

    >>> ridge_step(torch.diag(torch.tensor([0.0, 3.0])), torch.tensor([1.0, 2.0]), rho=1.0).tolist()
    [1.0, 0.5]
    """
    return filtered_step(H, g, ridge(rho))


def effective_dimension(H: Tensor, rho: float) -> Tensor:
    """``d_rho(H) = tr(H (H + rho I)^(-1))``: how many directions matter beside ``rho``.

    Between 0 and the rank of ``H``.

    >>> effective_dimension(torch.diag(torch.tensor([0.0, 1.0, 3.0])), rho=1.0).item()
    1.25
    """
    values: Tensor = torch.linalg.eigvalsh(check_psd("H", H)).clamp_min(0)
    return (values * ridge(rho)(values)).sum(-1)


@dataclass(frozen=True)
class FilterCertificate:
    """The conditions of the filter theorem on one spectrum, and what the step does there.

    With ``nonnegative`` and ``falling``, ``norm_ratio <= 1``; with ``damage_rising`` as well,
    ``gain >= 1``. Both then hold for every gradient, not for this one only.
    """

    nonnegative: Tensor
    """``f >= 0``"""
    falling: Tensor
    """``f`` never rises with the eigenvalue"""
    damage_rising: Tensor
    """``lambda f(lambda)`` never falls"""
    norm_ratio: Tensor
    """damage over FO's at equal norm, ``(x'Hx/|x|^2)/(g'Hg/|g|^2)``"""
    gain: Tensor
    """FO's damage over that of the step at equal progress, ``Gamma``"""

    @property
    def at_equal_norm(self) -> Tensor:
        """Where the theorem says ``norm_ratio <= 1``."""
        return self.nonnegative & self.falling

    @property
    def at_equal_progress(self) -> Tensor:
        """Where the theorem says ``gain >= 1``."""
        return self.at_equal_norm & self.damage_rising


def filter_certificate(H: Tensor, g: Tensor, f: SpectralFilter) -> FilterCertificate:
    """Check the conditions of the filter theorem on the eigenvalues of ``H``.

    With weights ``w_i = g_i^2/|g|^2`` Chebyshev's sum inequality says, twice,
    ``E[f lambda f] <= E[f] E[lambda f] <= E[f]^2 E[lambda]`` (equal progress), and once
    ``E[lambda f^2] <= E[lambda] E[f^2]`` (equal norm, where ``lambda f`` need not rise).

    >>> H, g = torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([1.0, 2.0])
    >>> found = filter_certificate(H, g, ridge(1.0))
    >>> found.at_equal_progress.item(), round(found.gain.item(), 3)
    (True, 1.291)
    """
    matrix, vector = check_damage(H, check_nonzero("g", g))
    values = torch.linalg.eigvalsh(matrix).clamp_min(0)
    factors = _factors(values, f)
    x = filtered_step(H, g, f)  # H as it came: its precision says how much rounding to forgive
    along = directional_curvature(matrix, x) / directional_curvature(matrix, vector)
    return FilterCertificate(
        nonnegative=(factors >= 0).all(-1),
        falling=_rises(-factors),
        damage_rising=_rises(values * factors),
        norm_ratio=along,
        gain=efficiency_gain(H, g, x),
    )


def _rises(sequence: Tensor) -> Tensor:
    """Whether a sequence (..., d) never falls, but for rounding between equal eigenvalues."""
    forgiven = RELATIVE_TOLERANCE * sequence.abs().amax(-1, keepdim=True)
    return (sequence.diff(dim=-1) >= -forgiven).all(-1)


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
    metric, vector = check_metric(P, g)
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
    metric, vector = check_metric(P, g)
    return mean_factor(vector.shape[-1], check_positive_int("q", q)) * matvec(metric, vector)


def metric_second_moment(P: Tensor, g: Tensor, q: int) -> Tensor:
    """``E[xx'] = ((q+1) Pgg'P + (g'Pg) P)/(q+d+1)``.

    >>> metric_second_moment(torch.eye(2), torch.tensor([0.0, 2.0]), q=1).tolist()
    [[1.0, 0.0], [0.0, 3.0]]
    """
    metric, vector = check_metric(P, g)
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


def kronecker_damage(D: Tensor, S: Tensor, dW: Tensor) -> Tensor:
    """``tr(D dW S dW')/2``: the damage of ``dW`` under the curvature ``D (x) S``.

    >>> kronecker_damage(2 * torch.eye(1), torch.eye(2), torch.tensor([[3.0, 4.0]])).item()
    25.0
    """
    left, change, right = _check_layer(D, dW, S, "dW")
    return ((left @ change @ right) * change).sum((-2, -1)) / 2


def kronecker_step(D: Tensor, S: Tensor, U: Tensor, rho: float) -> Tensor:
    """``(D/t_D + rho I)^(-1) U (S/t_S + rho I)^(-1)``, ``t`` the mean eigenvalue of each factor.

    Each factor is damped by itself, so this is *not* a filter of ``D (x) S``: the inverse is that
    of ``D (x) S/(t_D t_S) + rho (D/t_D (x) I + I (x) S/t_S) + rho^2 I``. It never does more damage
    than ``U`` where ``U`` has rank one (a filter on each side); for other ``U`` it can.

    >>> D, S = torch.diag(torch.tensor([0.0, 2.0])), torch.eye(2)
    >>> kronecker_step(D, S, torch.ones(2, 2), rho=1.0).tolist()
    [[0.5, 0.5], [0.16666666666666666, 0.16666666666666666]]
    """
    left, update, right = _check_layer(D, U, S, "U")
    damping = check_number("rho", rho, above=0)
    shaped = torch.linalg.solve(_damped("D", left, damping), update)
    step: Tensor = torch.linalg.solve(_damped("S", right, damping), shaped, left=False)
    return step


def _damped(name: str, factor: Tensor, damping: float) -> Tensor:
    """``factor/t + rho I``."""
    d = factor.shape[-1]
    level = trace(factor) / d
    if bool((level <= 0).any()):
        raise ValueError(f"{name} must have a positive mean eigenvalue, got {level.min():.3g}")
    return factor / level[..., None, None] + scaled_identity(torch.full_like(level, damping), d)


def _check_layer(D: Tensor, change: Tensor, S: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    left, matrix, right = check_psd("D", D), check_real(name, change), check_psd("S", S)
    expected = (left.shape[-1], right.shape[-1])
    if matrix.shape[-2:] != expected:
        came = tuple(matrix.shape)
        raise ValueError(f"{name} must have shape (..., {expected[0]}, {expected[1]}), got {came}")
    return left, matrix, right


@dataclass(frozen=True)
class LoraFactors:
    """Pairs ``(D, S)`` of LoRA's own weights, from those of the layer it is added to."""

    of_A: tuple[Tensor, Tensor]
    """``(s^2 B'DB, S)``"""
    of_B: tuple[Tensor, Tensor]
    """``(s^2 D, ASA')``"""


def lora_factors(D: Tensor, S: Tensor, A: Tensor, B: Tensor, scaling: float = 1.0) -> LoraFactors:
    """The curvature ``B'DB (x) S`` of ``A`` and ``D (x) ASA'`` of ``B`` where ``dW = s BA``.

    Exact for a change of one of them: ``s B dA`` and ``s dB A`` do the damage that their factors
    say. Changed together they also meet through ``tr(D dB A S dA'B')`` and the product ``dB dA``,
    which neither factor holds. At ``B = 0`` the curvature of ``A`` is zero.

    >>> factors = lora_factors(torch.eye(2), torch.eye(2), torch.ones(1, 2), torch.ones(2, 1))
    >>> factors.of_A[0].item(), factors.of_B[1].item()
    (2.0, 2.0)
    """
    left, right = check_psd("D", D), check_psd("S", S)
    down, up = check_real("A", A), check_real("B", B)
    _check_adapter(down, up, left.shape[-1], right.shape[-1])
    squared = check_number("scaling", scaling, above=0) ** 2
    return LoraFactors(
        of_A=(squared * up.mT @ left @ up, right), of_B=(squared * left, down @ right @ down.mT)
    )


def _check_adapter(A: Tensor, B: Tensor, outputs: int, inputs: int) -> None:
    fit = min(A.dim(), B.dim()) >= 2 and A.shape[-2] == B.shape[-1]
    if not fit or A.shape[-1] != inputs or B.shape[-2] != outputs:
        raise ValueError(
            f"A and B must have shapes (..., r, {inputs}) and (..., {outputs}, r), "
            f"got {tuple(A.shape)} and {tuple(B.shape)}"
        )
