"""What the past weighs: products with its curvature, a diagnosis, and what to remember."""

from typing import TYPE_CHECKING

from risegrad.common.lazy_names import lookup

if TYPE_CHECKING:
    from risegrad.curvature.diagnosis.diagnose import diagnose
    from risegrad.curvature.diagnosis.inputs import BatchLoss, Measurement
    from risegrad.curvature.diagnosis.report import Diagnosis
    from risegrad.curvature.estimates.spectral import flat_signal, top_eigenvalue
    from risegrad.curvature.estimates.terms import ProductBudget
    from risegrad.curvature.operators.products import DenseOperator, NetworkOperator

__all__ = [
    "BatchLoss",
    "DenseOperator",
    "Diagnosis",
    "Measurement",
    "NetworkOperator",
    "ProductBudget",
    "diagnose",
    "flat_signal",
    "top_eigenvalue",
]

_HOMES = {
    "BatchLoss": "diagnosis.inputs",
    "DenseOperator": "operators.products",
    "Diagnosis": "diagnosis.report",
    "Measurement": "diagnosis.inputs",
    "NetworkOperator": "operators.products",
    "ProductBudget": "estimates.terms",
    "diagnose": "diagnosis.diagnose",
    "flat_signal": "estimates.spectral",
    "top_eigenvalue": "estimates.spectral",
}

__getattr__ = lookup(__name__, _HOMES)
