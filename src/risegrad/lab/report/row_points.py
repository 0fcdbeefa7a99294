"""Every run of a row as a point between learning and forgetting, and where it started from."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from risegrad.lab.frontier.frontier_curves import RunPoint, SweepSetting
from risegrad.lab.records.record import Record
from risegrad.lab.report.result_rows import ResultRow


def points(method: str, row: ResultRow) -> Iterator[RunPoint]:
    """One point for every run that has both measures."""
    found = (run_point(method, row.label, run) for run in row.runs)
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


def learned_nothing(row: ResultRow) -> bool:
    """Whether its runs learned no more than a model that was not trained, as far as is known."""
    runs = {point.seed: point for point in points("", row)}
    return bool(runs) and not SweepSetting("", row.label, runs).learned_something


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
