"""Experiments: files, runs, records and reports; ``lab.run`` and ``lab.load`` from Python."""

from typing import TYPE_CHECKING

from risegrad.common.imports import lazy

if TYPE_CHECKING:
    from riselab.runs import LabResults as LabResults
    from riselab.runs import load as load
    from riselab.runs import run as run

__getattr__, __dir__, __all__ = lazy(__name__)
