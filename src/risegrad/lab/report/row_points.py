"""Every run of a row as a point between learning and forgetting, and where it started from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from risegrad.lab.frontier.frontier_curves import RunPoint, SweepSetting
from risegrad.lab.records.record import Record


def points(method: str, label: str, runs: Sequence[Record]) -> Iterator[RunPoint]:
    """One point for every run of a row that has both measures."""
    for run in runs:
        measures = run.result.metrics
        learned, forgotten = measures.get("plasticity"), measures.get("forgetting")
        if learned is None or forgotten is None:
            continue
        final = measures.get("final_average")
        end = measures.get("avg") if final is None else final
        yield RunPoint(method, label, run.seed, learned, forgotten, end or 0.0, start(run))


def learned_nothing(runs: Sequence[Record]) -> bool:
    """Whether these learned no more than a model that was not trained, as far as is known."""
    found = {point.seed: point for point in points("", "", runs)}
    return bool(found) and not SweepSetting("", "", found).learned_something


def start(run: Record) -> float | None:
    """New of an untrained model: as scored before the stream, else by chance; None if unknown."""
    before = run.result.before.get(run.result.main_score) or ()
    if before and all(value is not None for value in before):
        return fmean(value for value in before if value is not None)
    return _chance(run)


def _chance(run: Record) -> float | None:
    """Guessing among the classes seen so far, averaged over tasks."""
    seen: set[str] = set()
    shares: list[float] = []
    for task in run.result.tasks:
        seen |= set(task.classes)
        if not task.classes:
            return None
        shares.append(100 / len(seen))
    return fmean(shares) if shares else None
