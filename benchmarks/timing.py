"""Ratios of two pieces of work, measured in turns so that both see the same machine."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True)
class Ratio:
    """One line of the results: ``value`` should stay on the right side of ``target``."""

    name: str
    value: float
    target: str
    met: bool
    detail: str = ""


def at_most(name: str, value: float, bound: float, detail: str = "") -> Ratio:
    return Ratio(name, value, f"<= {bound:g}", value <= bound, detail)


def at_least(name: str, value: float, bound: float, detail: str = "") -> Ratio:
    return Ratio(name, value, f">= {bound:g}", value >= bound, detail)


def seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measured_ratio(first: Work, second: Work, rounds: int = 9) -> float:
    """Time of ``first`` over time of ``second``: the median over rounds in which both run.

    They take turns in going first, so that neither always finds the other's caches.
    """
    seconds(first), seconds(second)
    ratios = []
    for number in range(rounds):
        if number % 2:
            later = seconds(second)
            ratios.append(seconds(first) / later)
        else:
            ratios.append(seconds(first) / seconds(second))
    return statistics.median(ratios)
