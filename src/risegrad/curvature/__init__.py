"""Foresight: curvature of real networks, block scores, and a diagnosis before training."""

from importlib import import_module
from typing import TYPE_CHECKING

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

# Looked up when first used, as in the package root: the commands must not wait for torch.
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


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
