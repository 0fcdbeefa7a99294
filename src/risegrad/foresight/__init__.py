"""Local validation of experiments and ``rise calibrate``; early homes of a diagnosis' names."""

from typing import TYPE_CHECKING

from risegrad.common.lazy_names import lookup

if TYPE_CHECKING:
    from risegrad.curvature import BatchLoss, Diagnosis, Measurement, diagnose
    from risegrad.theory.calibration import block_size_for, q_for

__all__ = ["BatchLoss", "Diagnosis", "Measurement", "block_size_for", "diagnose", "q_for"]


def __getattr__(name: str) -> object:
    room = "risegrad.theory" if name in ("block_size_for", "q_for") else "risegrad.curvature"
    homes = {"block_size_for": "calibration", "q_for": "calibration"}
    homes |= {"BatchLoss": "diagnosis.inputs", "Measurement": "diagnosis.inputs"}
    homes |= {"Diagnosis": "diagnosis.report", "diagnose": "diagnosis.diagnose"}
    return lookup(room, homes)(name)
