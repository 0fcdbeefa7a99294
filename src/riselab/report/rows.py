"""From single runs to points and to the rows of tables, whose runs differ in their seed only.

Few runs score the model before the stream, because it takes time and is the same for all of them.
The others borrow it from a run of the same model on the same data.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from riselab.common.inputs import essential, words
from riselab.common.intervals import Estimate, estimate
from riselab.common.settings import flat
from riselab.experiments.file import Choice, choices
from riselab.frontier.curves import NATS, POINTS, Measures, RunPoint, SweepSetting
from riselab.records.fields import Record, TaskRecord
from riselab.report.paper import TABLES, PaperPlace, find

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
    """A run as a point; None where learning or forgetting was not measured."""
    measures = run.result.metrics
    learned, forgotten = measures.get("plasticity"), measures.get("forgetting")
    if learned is None or forgotten is None:
        return None
    final = measures.get("final_average")
    end = measures.get("avg") if final is None else final
    start = untrained.start(run)
    noise = standard_error(run, learned, start)
    return RunPoint(method, setting, run.seed, learned, forgotten, end or 0.0, start, noise)


def learned_nothing(runs: Sequence[Record], untrained: UntrainedModels = ALONE) -> bool:
    """Whether these learned no more than a model that was not trained, as far as is known."""
    found = {point.seed: point for point in points("", "", runs, untrained)}
    return bool(found) and not SweepSetting("", "", found).learned_something


@dataclass(frozen=True, eq=False)
class ResultRow:
    """The runs of one configuration, one per seed, in the order of the seeds."""

    label: str
    section: str
    runs: tuple[Record, ...]
    place: PaperPlace | None = None
    """of the paper's figure that the row names"""
    baseline: bool = False
    untrained: UntrainedModels = ALONE
    """of all runs of the experiment, for those that did not score their own"""

    @cached_property
    def idle(self) -> bool:
        """Whether it learned nothing: what it keeps then says nothing, and is never the best."""
        return learned_nothing(self.runs, self.untrained)

    def points(self, method: str) -> list[RunPoint]:
        """Its runs between learning and forgetting, as a setting of ``method``."""
        return list(points(method, self.label, self.runs, self.untrained))

    def by_seed(self, value: Callable[[Record], float | None]) -> dict[int, float]:
        """``value`` of each run that has one, by seed."""
        found = {run.seed: value(run) for run in self.runs}
        return {seed: number for seed, number in found.items() if number is not None}

    def spread(self, value: Callable[[Record], float | None]) -> Estimate | None:
        """Mean and deviation of ``value`` over the seeds."""
        return estimate(self.by_seed(value).values())


@dataclass(frozen=True, eq=False)
class ReportedExperiment:
    """The rows of one experiment."""

    name: str
    rows: tuple[ResultRow, ...]
    choices: tuple[Choice, ...] = ()
    """where settings were chosen on validation data: what was chosen"""

    @property
    def chat(self) -> bool:
        """Whether its runs tuned a chat model: what they lose is drift, not points."""
        return all(run.setting("domain") == "chat" for run in self.runs())

    @property
    def measures(self) -> Measures:
        """What learning and forgetting are here."""
        return NATS if self.chat else POINTS

    def baseline_of(self, row: ResultRow) -> ResultRow | None:
        """The baseline of the row's own section, or the only one that there is."""
        baselines = [other for other in self.rows if other.baseline]
        near = [other for other in baselines if other.section == row.section]
        if len(near) == 1:
            return near[0]
        return baselines[0] if len(baselines) == 1 else None

    def runs(self) -> list[Record]:
        """The runs of all rows."""
        return [run for row in self.rows for run in row.runs]


def seconds_per_session(run: Record) -> float | None:
    """The mean training time of a session."""
    given = [seconds for seconds in run.run.seconds.train if seconds is not None]
    return sum(given) / len(given) if given else None


def kept_megabytes(run: Record) -> float | None:
    """What the run kept of its old tasks at the end, where it says."""
    kept = run.result.memory_bytes
    return kept[-1] / 1e6 if kept else None


def data_megabytes(run: Record) -> float | None:
    """The data that this stands for, where the run says."""
    data = run.result.data_bytes
    return data[-1] / 1e6 if data else None


def gather(
    records: Iterable[Record], baseline: str | None = None
) -> tuple[list[ReportedExperiment], list[str]]:
    """The experiments in the order of their names, and what a reader should know of the grouping.

    ``baseline`` is the label of the row to compare with, instead of those that the records mark.
    """
    warnings: list[str] = []
    named: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        named[record.experiment].append(record)
    experiments = []
    for name in sorted(named, key=_natural):
        chosen = tuple(choices(named[name]))
        labelled: dict[str, list[Record]] = defaultdict(list)
        for record in _reported(name, named[name], chosen, warnings):
            labelled[record.row.label].append(record)
        rows = [
            row for label, runs in labelled.items() for row in _rows(name, label, runs, warnings)
        ]
        untrained = UntrainedModels.among(named[name])
        rows = [replace(row, untrained=untrained) for row in rows]
        rows = _marked(name, rows, baseline, warnings)
        warnings += _different_inputs(name, rows)
        experiments.append(ReportedExperiment(name, tuple(sorted(rows, key=_order)), chosen))
    return experiments, warnings


def _reported(
    name: str, records: Sequence[Record], chosen: Sequence[Choice], warnings: list[str]
) -> list[Record]:
    """What is a result: no run that only decided, and none at a setting that is not chosen now."""
    settings = {(choice.section, choice.method): choice.setting for choice in chosen}
    tested = [record for record in records if not record.row.decides]
    if not tested:
        warnings.append(f"{name}: all runs are on validation data, none on test data yet")
        return list(records)
    kept = []
    for record in tested:
        row = record.row
        now = settings.get((row.section, row.method)) if row.chosen_by else None
        if now in (None, row.swept):
            kept.append(record)
        else:
            warnings.append(f"{record.path}: left out, because {now} is chosen now")
    return kept


def _rows(
    experiment: str, label: str, runs: Sequence[Record], warnings: list[str]
) -> list[ResultRow]:
    """One row, or one for each configuration if the runs differ in more than the seed."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for run in runs:
        groups[json.dumps(_essence(run), sort_keys=True)].append(run)
    firsts = [group[0] for group in groups.values()]
    keys = sorted({key for run in firsts for key in _essence(run)})
    differing = [key for key in keys if len({_value(run, key) for run in firsts}) > 1]
    if differing:
        warnings.append(
            f"{experiment}: runs of the row {label!r} differ in {', '.join(differing)}, "
            "not only in the seed; each configuration has its own row"
        )
    return [
        _row(
            ", ".join([label, *(f"{key}={_value(group[0], key)}" for key in differing)]),
            group,
            warnings,
        )
        for group in groups.values()
    ]


def _essence(run: Record) -> dict[str, Any]:
    """What the runs of one row have in common: settings other than seeds, and what was read."""
    settings = flat(run.identity.settings)
    own = {key: value for key, value in settings.items() if key.rpartition(".")[2] != "seed"}
    return own | essential(inputs_of(run))


def inputs_of(run: Record) -> Mapping[str, Any]:
    """What was read, with the names and revisions that the run found."""
    return run.run.inputs or run.identity.inputs


def _value(run: Record, key: str) -> str:
    """A setting or an input in words; a setting that is not in the essence has its default."""
    if key in inputs_of(run):
        return words(inputs_of(run)[key])
    return _word(flat(run.config).get(key, flat(run.identity.settings).get(key)))


def _different_inputs(name: str, rows: Sequence[ResultRow]) -> Iterator[str]:
    """A remark for every input that is not the same in all rows that have it."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for place, one in inputs_of(row.runs[0]).items():
            found[place][words(one)].append(row.label)
    for place, groups in found.items():
        if len(groups) > 1:
            parts = "; ".join(f"{what} in {', '.join(labels)}" for what, labels in groups.items())
            yield f"{name}: rows differ in what was read as {place}: {parts}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _row(label: str, runs: Sequence[Record], warnings: list[str]) -> ResultRow:
    latest: dict[int, Record] = {}
    for run in sorted(runs, key=lambda run: (run.run.finished, str(run.path))):
        if run.seed in latest:
            older = latest[run.seed].path
            warnings.append(f"{older}: the same run as {run.path}, which finished later; left out")
        latest[run.seed] = run
    kept = tuple(latest[seed] for seed in sorted(latest))
    row = kept[0].row
    place = _place(kept[0], warnings)
    return ResultRow(label, row.section, kept, place, row.baseline)


def _place(run: Record, warnings: list[str]) -> PaperPlace | None:
    cell = run.row.paper
    if cell is None:
        return None
    try:
        return find(cell.table, cell.row, cell.column, run.row.section)
    except ValueError as error:
        warnings.append(f"{run.path}: row.paper: {error}")
        return None


def _marked(
    experiment: str, rows: list[ResultRow], baseline: str | None, warnings: list[str]
) -> list[ResultRow]:
    """The rows with the chosen baseline, if one was chosen and this experiment has it."""
    if baseline is None:
        return rows
    if baseline not in {row.label for row in rows}:
        warnings.append(
            f"{experiment} has no row {baseline!r}; its own baseline is used, if it marks one"
        )
        return rows
    return [replace(row, baseline=row.label == baseline) for row in rows]


_SECTIONS = [
    section
    for table in TABLES.values()
    for section in dict.fromkeys(row.section for row in table.rows)
]


def _order(row: ResultRow) -> tuple[Any, ...]:
    """As in the paper, then as in the experiment file; where a record does not say that, baselines
    first, then by name, and numbers in names count as numbers."""
    known = row.section in _SECTIONS
    section = (_SECTIONS.index(row.section), []) if known else (99, _natural(row.section))
    place = row.place.row if row.place else 99
    return (section, place, row.runs[0].row.order, not row.baseline, _natural(row.label))


def _natural(text: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"([0-9]{1,18})", text)
    return [(0, int(part), "") if i % 2 else (1, 0, part) for i, part in enumerate(parts)]
