"""Local validation of experiments and ``rise calibrate``; early homes of a diagnosis' names."""

from typing import TYPE_CHECKING

from risegrad.common.imports import lazy

if TYPE_CHECKING:
    from risegrad.curvature import BatchLoss as BatchLoss
    from risegrad.curvature import Diagnosis as Diagnosis
    from risegrad.curvature import Measurement as Measurement
    from risegrad.curvature import diagnose as diagnose
    from risegrad.theory.calibration import block_size_for as block_size_for
    from risegrad.theory.calibration import q_for as q_for

__getattr__, __dir__, __all__ = lazy(__name__)
