"""The exposure panel: second moments of FO, norm-matched ZO and the isotropic blind optimum.

With ``M = E[x x']`` the worst damage over all curvatures of a given trace is
``(1/2) d lam_avg lam_max(M)``. FO puts everything on ``g``; ZO closes the fraction ``tau`` of the
way to the isotropic optimum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.sandbox.simulate import normals, second_moment
from risegrad.theory.calibration import tau
from risegrad.theory.conditions import quadratic, trace
from risegrad.theory.exposure import (
    blind_minimax_risk,
    fo_exposure,
    isotropic_exposure,
    worst_case_risk,
    zo_exposure,
)

AVERAGE_CURVATURE = 1.0  # the sandbox's spectra average one


@dataclass(frozen=True)
class Exposure:
    """One second moment: its share along ``g``, across it (per direction), and its blind risk."""

    along: float
    across: float
    risk: float


@dataclass(frozen=True)
class ExposurePoint:
    """Measured and exact exposure of norm-matched ZO at one query count."""

    q: int
    measured: Exposure
    exact: Exposure
    closed: float
    """measured fraction of the way from FO's risk to the optimum"""
    tau: float
    """its exact value"""


@dataclass(frozen=True)
class ExposureMeasurement:
    """The exposures of all rules in one dimension."""

    d: int
    fo: Exposure
    isotropic: Exposure
    zo: list[ExposurePoint]


def describe(M: Tensor, g: Tensor) -> Exposure:
    """Read one second moment, with ``|g| = 1``."""
    along = quadratic(M, g)
    across = (trace(M) - along) / (len(g) - 1)
    return Exposure(float(along), float(across), float(worst_case_risk(M, AVERAGE_CURVATURE)))


def measure_exposure(
    d: int, queries: Sequence[int], samples: int, seed: int
) -> ExposureMeasurement:
    """Exposure over query counts; only the law of ``P g`` enters, so one draw per sample."""
    g = torch.nn.functional.normalize(normals(generator_for(seed, "exposure/gradient"), d), dim=0)
    fo = describe(fo_exposure(g), g)
    best = float(blind_minimax_risk(g, AVERAGE_CURVATURE))
    points = []
    for q in queries:
        measured = describe(second_moment(g, q, samples, generator_for(seed, f"exposure/{q}")), g)
        closed = (fo.risk - measured.risk) / (fo.risk - best)
        exact = describe(zo_exposure(g, q), g)
        points.append(ExposurePoint(q, measured, exact, closed, tau(d, q)))
    return ExposureMeasurement(d, fo, describe(isotropic_exposure(g), g), points)
