"""What the past weighs: products with its curvature, estimates from them, and what to remember."""

from typing import TYPE_CHECKING

from risegrad.common.lazy_names import lookup

if TYPE_CHECKING:
    from risegrad.curvature.estimates.product_budget import ProductBudget
    from risegrad.curvature.estimates.spectral import flat_signal, top_eigenvalue
    from risegrad.curvature.operators.products import DenseOperator, NetworkOperator

__all__ = [
    "DenseOperator",
    "NetworkOperator",
    "ProductBudget",
    "flat_signal",
    "top_eigenvalue",
]

_HOMES = {
    "DenseOperator": "operators.products",
    "NetworkOperator": "operators.products",
    "ProductBudget": "estimates.product_budget",
    "flat_signal": "estimates.spectral",
    "top_eigenvalue": "estimates.spectral",
}

__getattr__ = lookup(__name__, _HOMES)
