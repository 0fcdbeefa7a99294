"""Every run of a row as a point between learning and forgetting, and where it started from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from risegrad.lab.frontier.frontier_curves import RunPoint, SweepSetting
from risegrad.lab.records.record import Record


def points(method: str, label: str, runs: Sequence[Record]) -> Iterator[RunPoint]:
    """One point for every run of a row that has both measures."""
    found = (run_point(method, label, run) for run in runs)
    return (point for point in found if point)


def run_point(method: str, setting: str, run: Record) -> RunPoint | None:
    """A run as a point; None where one of the two was not measured."""
    measures = run.result.metrics
    learned, forgotten = measures.get("plasticity"), measures.get("forgetting")
    if learned is None or forgotten is None:
        return None
    final = measures.get("final_average")
    end = measures.get("avg") if final is None else final
    return RunPoint(method, setting, run.seed, learned, forgotten, end or 0.0, start(run))


def learned_nothing(runs: Sequence[Record]) -> bool:
    """Whether these learned no more than a model that was not trained, as far as is known."""
    found = {point.seed: point for point in points("", "", runs)}
    return bool(found) and not SweepSetting("", "", found).learned_something


def start(run: Record) -> float | None:
    """New of an untrained model: as scored before the stream, else by chance; None if unknown."""
    before = run.result.before.get(run.result.main_score) or ()
    learned = [
        value for value, task in zip(before, run.result.tasks, strict=False) if not task.known
    ]
    if learned and all(value is not None for value in learned):
        return fmean(value for value in learned if value is not None)
    return _chance(run)


def _chance(run: Record) -> float | None:
    """Guessing among the classes seen so far, averaged over tasks."""
    seen: set[str] = set()
    shares: list[float] = []
    for task in run.result.tasks:
        seen |= set(task.classes)
        if not task.classes:
            return None
        shares += [] if task.known else [100 / len(seen)]
    return fmean(shares) if shares else None
