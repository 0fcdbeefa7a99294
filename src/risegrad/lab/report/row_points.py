"""Every run of a row as a point between learning and forgetting, and where it started from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from risegrad.lab.frontier.frontier_curves import RunPoint, SweepSetting
from risegrad.lab.records.record import Record
from risegrad.lab.report.untrained_model import UntrainedModels, standard_error

ALONE = UntrainedModels()
"""For runs that borrow from no other."""


def points(
    method: str, label: str, runs: Sequence[Record], untrained: UntrainedModels = ALONE
) -> Iterator[RunPoint]:
    """One point for every run of a row that has both measures."""
    found = (run_point(method, label, run, untrained) for run in runs)
    return (point for point in found if point)


def run_point(
    method: str, setting: str, run: Record, untrained: UntrainedModels = ALONE
) -> RunPoint | None:
    """A run as a point; None where one of the two was not measured."""
    measures = run.result.metrics
    learned, forgotten = measures.get("plasticity"), measures.get("forgetting")
    if learned is None or forgotten is None:
        return None
    final = measures.get("final_average")
    end = measures.get("avg") if final is None else final
    return measured_point(method, setting, run, (learned, forgotten, end or 0.0), untrained)


def measured_point(
    method: str,
    setting: str,
    run: Record,
    measures: tuple[float, float, float],
    untrained: UntrainedModels = ALONE,
) -> RunPoint:
    """What was learned, forgotten and known at the end, beside where the run started from."""
    start = untrained.start(run)
    noise = standard_error(run, measures[0], start)
    return RunPoint(method, setting, run.seed, *measures, start, noise)


def learned_nothing(runs: Sequence[Record], untrained: UntrainedModels = ALONE) -> bool:
    """Whether these learned no more than a model that was not trained, as far as is known."""
    found = {point.seed: point for point in points("", "", runs, untrained)}
    return bool(found) and not SweepSetting("", "", found).learned_something
