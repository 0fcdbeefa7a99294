"""What the report calls the metrics of a record, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A metric of the record, and what a report calls it."""

    key: str
    title: str
    words: str
    better: int
    """1 where higher is better, -1 where lower is, 0 where neither is"""
    meaning: str = ""
    """one line for a reader who meets the title for the first time"""
    alone: bool = True
    """False where the figure by itself names no best, because every smaller step improves it"""


KNOWN = (
    Metric("avg", "Avg", "average accuracy", 1,
           "average accuracy, as the paper defines it for the domain of the record"),
    Metric("last", "Last", "last accuracy", 1, "accuracy on all tasks after the last session"),
    Metric("forgetting", "Fgt", "forgetting", -1,
           "forgetting: points that old tasks lost until the end", alone=False),
    Metric("plasticity", "New", "new-task accuracy", 1,
           "new-task accuracy: on each task right after learning it"),
    Metric("backward_transfer", "BWT", "backward transfer", 1,
           "backward transfer: what later tasks changed for earlier ones", alone=False),
    Metric("forward_transfer", "FWT", "forward transfer", 1,
           "forward transfer: what earlier tasks changed for later ones before these were learned"),
)  # fmt: skip
PAPER = KNOWN[:3]
COMPARED = KNOWN[:4]
"""Backward transfer is left out: it nearly repeats forgetting with the other sign. Forward transfer
is too: few records have it."""

_BY_KEY = {metric.key: metric for metric in KNOWN}


def metric(key: str) -> Metric:
    """The metric of this key; one that is not known keeps its key as its name."""
    return _BY_KEY.get(key) or Metric(key, key, key, 0)
