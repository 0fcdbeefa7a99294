"""Foresight: curvature of real networks, block scores, and a diagnosis before training."""

from typing import TYPE_CHECKING

from risegrad.lazy import lookup

if TYPE_CHECKING:
    from risegrad.curvature.budget import Budget
    from risegrad.curvature.calibrated import block_size_for, q_for
    from risegrad.curvature.diagnosis import Diagnosis, diagnose
    from risegrad.curvature.operators import DenseOperator, NetworkOperator
    from risegrad.curvature.spectrum import flat_signal, top_eigenvalue
    from risegrad.curvature.traces import trace

__all__ = [
    "Budget",
    "DenseOperator",
    "Diagnosis",
    "NetworkOperator",
    "block_size_for",
    "diagnose",
    "flat_signal",
    "q_for",
    "top_eigenvalue",
    "trace",
]

_HOMES = {
    "Budget": "budget",
    "DenseOperator": "operators",
    "Diagnosis": "diagnosis",
    "NetworkOperator": "operators",
    "block_size_for": "calibrated",
    "diagnose": "diagnosis",
    "flat_signal": "spectrum",
    "q_for": "calibrated",
    "top_eigenvalue": "spectrum",
    "trace": "traces",
}

__getattr__ = lookup(__name__, _HOMES)
