"""Experiments: files, runs, records and reports; ``lab.run`` and ``lab.load`` from Python."""

from typing import TYPE_CHECKING

from risegrad.common.lazy_names import lookup

if TYPE_CHECKING:
    from risegrad.lab.lab_results import LabResults
    from risegrad.lab.lab_runs import load, run

__all__ = ["LabResults", "load", "run"]

__getattr__ = lookup(__name__, {"LabResults": "lab_results", "load": "lab_runs", "run": "lab_runs"})


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
