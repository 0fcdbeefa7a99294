"""Means, deviations and intervals as text."""

from __future__ import annotations

from risegrad.common.intervals import Interval, Spread
from risegrad.lab.report.paper_tables import PaperFigure
from risegrad.pages.page_text import MISSING, number, signed


def mean_text(found: Spread | PaperFigure | None) -> str:
    """The mean as text."""
    return MISSING if found is None else number(found.mean)


def spread_text(found: Spread | PaperFigure | None) -> str:
    """``88.39 ± 0.42``, or the mean alone where there is no deviation."""
    if found is None or found.sd is None:
        return mean_text(found)
    return f"{number(found.mean)} ± {number(found.sd)}"


def interval_text(found: Interval) -> str:
    """The ends in brackets, or that there are none."""
    if found.low is None or found.high is None:
        return "(no interval)"
    return f"[{signed(found.low)}, {signed(found.high)}]"
