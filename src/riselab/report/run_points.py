"""Every run as a point between learning and forgetting, and where it started from.

Few runs score the model before the stream, because it takes time and is the same for all of them.
The others borrow it from a run of the same model on the same data.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from riselab.common.inputs import essential
from riselab.frontier.curves import RunPoint, SweepSetting
from riselab.records.fields import Record, TaskRecord

SHARED = (("stream",), ("model",), ("loop", "first"), ("loop", "score_on"))
"""The settings that an untrained model's score depends on; the update rule is none of them."""


@dataclass(frozen=True)
class UntrainedModels:
    """New of untrained models, by what they have in common and by seed."""

    found: dict[str, dict[int, list[float]]] = field(default_factory=dict)

    @classmethod
    def among(cls, records: Iterable[Record]) -> UntrainedModels:
        """Of all runs that scored their model before the stream."""
        found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for run in records:
            if (score := _scored(run)) is not None:
                found[_same(run)][run.seed].append(score)
        return cls({key: dict(seeds) for key, seeds in found.items()})

    def start(self, run: Record) -> float | None:
        """As the run scored it, else as another run did at its seed, else as the others did on
        average, else by chance; None if nothing is known."""
        own = _scored(run)
        if own is not None:
            return own
        lent = self.found.get(_same(run), {})
        scores = lent.get(run.seed) or [score for given in lent.values() for score in given]
        return fmean(scores) if scores else _chance(run)


def _scored(run: Record) -> float | None:
    before = run.result.before.get(run.result.main_score) or ()
    pairs = zip(before, run.result.tasks, strict=False)
    scores = [value for value, task in pairs if not task.known]
    if not scores or any(value is None for value in scores):
        return None
    return fmean(value for value in scores if value is not None)


def _same(run: Record) -> str:
    """The same for two runs that started from the same model and were scored on the same data."""
    tasks = [(task.name, task.classes, task.test, task.known) for task in run.result.tasks]
    settings = [_setting(run, place) for place in SHARED]
    inputs = essential(run.run.inputs or run.identity.inputs)
    return json.dumps([settings, inputs, tasks, run.result.main_score], sort_keys=True)


def _setting(run: Record, place: tuple[str, ...]) -> Any:
    """Of the identity, in which names of folders have no part."""
    found: Any = run.identity.settings
    for key in place:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _chance(run: Record) -> float | None:
    """Guessing among the classes seen so far, averaged over tasks; nobody writes the exact answer
    of a chat by chance."""
    if run.setting("domain") == "chat":
        return 0.0
    seen: set[str] = set()
    shares: list[float] = []
    for task in run.result.tasks:
        seen |= set(task.classes)
        if not task.classes:
            return None
        shares += [] if task.known else [100 / len(seen)]
    return fmean(shares) if shares else None


def standard_error(run: Record, learned: float, start: float | None) -> float:
    """Of New, in points: what test sets of this size leave open (binomial, one share for all
    tasks: halfway between start and end); 0 where the sizes or the start are not known."""
    sizes = list(_sizes(run))
    if start is None or not sizes or not all(sizes):
        return 0.0
    share = min(max((learned + start) / 200, 0.0), 1.0)
    of_mean = sum(1 / size for size in sizes) / len(sizes) ** 2
    return 100 * math.sqrt(share * (1 - share) * of_mean)


def _sizes(run: Record) -> Iterator[int]:
    def size(task: TaskRecord) -> int:
        if run.setting("domain") == "own":  # there a whole batch counts as one example
            return task.answers
        decided = run.setting("loop", "score_on") == "validation"
        return task.validation if decided else task.test

    return (size(task) for task in run.result.tasks if not task.known)


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
