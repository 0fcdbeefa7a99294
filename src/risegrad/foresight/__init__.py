"""Predictions before training, and whether they came true: calibration, diagnosis, validation."""

from typing import TYPE_CHECKING

from risegrad.common.lazy_names import lookup

if TYPE_CHECKING:
    from risegrad.foresight.diagnosis import Diagnosis, diagnose
    from risegrad.foresight.diagnosis_options import BatchLoss, Measurement
    from risegrad.theory.calibration import block_size_for, q_for

__all__ = ["BatchLoss", "Diagnosis", "Measurement", "block_size_for", "diagnose", "q_for"]

_HOMES = {
    "BatchLoss": "diagnosis_options",
    "Diagnosis": "diagnosis",
    "Measurement": "diagnosis_options",
    "block_size_for": "block_choice",
    "diagnose": "diagnosis",
    "q_for": "block_choice",
}

__getattr__ = lookup(__name__, _HOMES)
