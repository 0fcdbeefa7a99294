"""What the past weighs: products with its curvature, a diagnosis, and what to remember."""

from typing import TYPE_CHECKING

from risegrad.common.imports import lazy

if TYPE_CHECKING:
    from risegrad.curvature.diagnosis.diagnose import diagnose as diagnose
    from risegrad.curvature.diagnosis.inputs import BatchLoss as BatchLoss
    from risegrad.curvature.diagnosis.inputs import Measurement as Measurement
    from risegrad.curvature.diagnosis.report import Diagnosis as Diagnosis
    from risegrad.curvature.estimates import ProductBudget as ProductBudget
    from risegrad.curvature.products import DenseOperator as DenseOperator
    from risegrad.curvature.products import NetworkOperator as NetworkOperator

__getattr__, __dir__, __all__ = lazy(__name__)
