"""What the report calls the metrics of a record, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    key: str
    title: str
    words: str
    better: int
    """1 where higher is better, -1 where lower is, 0 where neither is"""


KNOWN = (
    Metric("avg", "Avg", "average accuracy", 1),
    Metric("last", "Last", "last accuracy", 1),
    Metric("forgetting", "Fgt", "forgetting", -1),
    Metric("plasticity", "New", "new-task plasticity", 1),
    Metric("backward_transfer", "BWT", "backward transfer", 1),
    Metric("forward_transfer", "FWT", "forward transfer", 1),
)
PAPER = KNOWN[:3]
COMPARED = KNOWN[:4]
"""Backward transfer is left out: it nearly repeats forgetting with the other sign. Forward transfer
is too: few records have it."""

_BY_KEY = {metric.key: metric for metric in KNOWN}


def metric(key: str) -> Metric:
    return _BY_KEY.get(key) or Metric(key, key, key, 0)
