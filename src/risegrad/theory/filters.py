"""Steps that filter the gradient by the curvature, ``x = f(H) g`` (beyond the paper).

``f`` acts on the eigenvalues. Where it falls while ``lambda f(lambda)`` rises, the step never does
more damage than FO, neither at equal norm nor at equal progress, whatever the gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.checks import check_number
from risegrad.theory.conditions import (
    RELATIVE_TOLERANCE,
    check_damage,
    check_nonzero,
    check_psd,
    check_real,
)
from risegrad.theory.efficiency import efficiency_gain
from risegrad.theory.linear_algebra import matvec
from risegrad.theory.local_model import directional_curvature

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
