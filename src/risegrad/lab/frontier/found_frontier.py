"""What a search found: its curves, the best setting, and what must be said plainly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

from risegrad.common.intervals import Interval, interval
from risegrad.common.optional_imports import need
from risegrad.continual.metrics import final_average, forgetting_max_last, new_task_plasticity
from risegrad.lab.frontier.equal_learning import Frontier
from risegrad.lab.frontier.frontier_code import code_of
from risegrad.lab.frontier.frontier_curves import ERRORS, RunPoint, SweepSetting
from risegrad.lab.frontier.frontier_methods import FrontierMethod
from risegrad.lab.records.record import Record
from risegrad.lab.report.run_points import measured_point, run_point
from risegrad.pages.page import CodeBlock
from risegrad.pages.text import for_markdown

if TYPE_CHECKING:
    from pandas import DataFrame

    from risegrad.pages.charts import AnyChart

CHANCE_DEVIATIONS = 2.0


@dataclass(frozen=True)
class BestSetting:
    """One method at one setting, with intervals over its seeds."""

    method: str
    setting: str
    learned: Interval
    forgotten: Interval
    use: CodeBlock
    """lines of plain PyTorch that train so; for what only the lab has, a row of an experiment"""

    @property
    def code(self) -> tuple[str, ...]:
        """The lines alone."""
        return self.use.lines

    def _repr_markdown_(self) -> str:
        """For notebooks: the setting, and its lines in a block that can be copied."""
        return f"{for_markdown(str(self))}\n\n{self.use.markdown()}"

    def __str__(self) -> str:
        ends = self.forgotten
        between = "" if ends.low is None else f" (95 % interval {ends.low:.1f} to {ends.high:.1f})"
        return (
            f"{self.method} at {self.setting}: learns {self.learned.mean:.1f} %, forgets "
            f"{ends.mean:.1f} points{between}"
        )


@dataclass(frozen=True)
class FoundFrontier:
    """The runs of a search, read at equal learning."""

    title: str
    methods: Mapping[str, FrontierMethod]
    records: Sequence[Record]
    cut: Sequence[str] = ()
    """what the time was too short for"""
    failed: Sequence[str] = ()
    targets: Sequence[str] = ()
    """the layers that LoRA is put on, by the last parts of their names; empty without LoRA"""
    files: Mapping[str, str] = field(default_factory=dict)
    """what was written: ``page`` and ``figure``"""

    @cached_property
    def runs(self) -> tuple[RunPoint, ...]:
        """Every run, and every point between start and end where one was scored there."""
        own = (run_point(run.row.method, run.row.swept, run) for run in self.records)
        between = [m for m in self.methods.values() if m.of]
        line = (p for m in between for run in self._of(m) for p in _line(m.label, run))
        return tuple(point for point in (*own, *line) if point)

    @cached_property
    def frontier(self) -> Frontier:
        """Forgetting against learning, with the usual optimizers as the reference."""
        if not self.runs:
            reason = f": {self.failed[0]}" if self.failed else ", the time was too short"
            raise RuntimeError(f"no run is done{reason}")
        there = {run.method for run in self.runs}
        return Frontier(
            self.runs,
            [m.label for m in self.methods.values() if m.reference and m.label in there],
        )

    @cached_property
    def sentence(self) -> str:
        """The finding in one sentence."""
        alive = [s for curve in self.frontier.curves.values() for s in curve.front]
        return self.frontier.sentence() if alive else self._nothing

    @property
    def _nothing(self) -> str:
        best = max(self.runs, key=lambda run: run.learned - (run.start or 0.0))
        start = "" if best.start is None else f" ({best.start:.1f} %)"
        return (
            f"Nothing was learned: no setting is better than the untrained model{start} on new "
            f"data by more than {ERRORS:g} standard errors of the test data (of {best.noise:.1f} "
            f"points); the best run has {best.learned:.1f} %."
        )

    @cached_property
    def untrained(self) -> str:
        """What the model scores before training; empty where no run looked."""
        sets = {"on new data": False, "on the data to keep": True}
        means = {words: _before(self.records, known) for words, known in sets.items()}
        told = (f"{score:.1f} % {words}" for words, score in means.items() if score is not None)
        return f"Before training: {listed}." if (listed := ", ".join(told)) else ""

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """What a reader must know before trusting the sentence."""
        return tuple(self._remarks())

    def best(self, learning: float | None = None) -> BestSetting:
        """The setting that keeps most among those that learn at least ``learning`` percent.

        Without a wanted amount: the one that knows most at the end, old and new together.
        """
        return self._described(self.frontier.best(learning))

    @cached_property
    def winner(self) -> BestSetting:
        """The method that clearly forgets less at equal learning, at its best end; else the best
        of the references, because nothing else has shown that it is worth its lines."""
        clear = [f.method for f in self.frontier.comparisons if f.verdict == "less"]
        names = clear[:1] or self.frontier.references
        settings = [s for n in names for s in self.frontier.curves[n].settings]
        alive = [s for s in settings if s.learned_something]
        if not alive:
            raise ValueError("no setting learned more than an untrained model")
        return self._described(max(alive, key=lambda setting: setting.final))

    def frame(self) -> DataFrame:
        """One row per run (pandas), with the seconds that it took."""
        pandas = need("pandas", "lab")
        seconds = {(r.row.method, r.row.swept, r.seed): r.run.total_seconds for r in self.records}
        rows = [
            asdict(run) | {"seconds": seconds.get((run.method, run.setting, run.seed))}
            for run in self.runs
        ]
        found: DataFrame = pandas.DataFrame(rows)
        return found

    def figure(self) -> AnyChart:
        """The chart (altair): forgetting against learning."""
        from risegrad.lab.frontier.frontier_page import figure

        return figure(self).chart

    def _repr_html_(self) -> str:
        from risegrad.lab.frontier.frontier_page import notebook

        return notebook(self)

    def __str__(self) -> str:
        from risegrad.lab.frontier.frontier_page import text

        return text(self)

    def _of(self, method: FrontierMethod) -> list[Record]:
        base = self.methods[method.of].label
        return [run for run in self.records if run.row.method == base]

    def _described(self, setting: SweepSetting) -> BestSetting:
        runs = tuple(setting.runs.values())
        learned, forgotten = (
            interval([r.learned for r in runs]),
            interval([r.forgotten for r in runs]),
        )
        assert learned is not None
        assert forgotten is not None
        method = next(m for m in self.methods.values() if m.label == setting.method)
        rate = f"lr={setting.knobs['lr']}"
        own = self._of(method) if method.of else self.records
        label = self.methods[method.of].label if method.of else method.label
        run = next(r for r in own if (r.row.method, r.row.swept) == (label, rate))
        use = code_of(run, self.targets, setting.knobs.get("share", ""))
        return BestSetting(setting.method, setting.name, learned, forgotten, use)

    def _remarks(self) -> Iterator[str]:
        yield from dict.fromkeys(note for run in self.records[:1] for note in _at_chance(run))
        for curve in self.frontier.curves.values():
            if not curve.front:
                yield f"{curve.name} learned nothing at any of its rates, so it is not compared."
        if self.cut:
            yield f"Cut to fit the time: {'; '.join(self.cut)}."
        if self.failed:
            yield f"Failed runs: {len(self.failed)}, the first {self.failed[0]}"


def _before(records: Sequence[Record], known: bool) -> float | None:
    """Mean over runs of the untrained model's score on the sets that are known, or new."""
    scores = [
        score
        for run in records
        for task, score in zip(
            run.result.tasks, run.result.before.get(run.result.main_score, ()), strict=False
        )
        if task.known is known and score is not None
    ]
    return fmean(scores) if scores else None


def _line(method: str, run: Record) -> Iterator[RunPoint]:
    """Points on the way back: the last row of the matrix is what was scored there."""
    score, known = run.result.main_score, sum(task.known for task in run.result.tasks)
    rows = list(run.result.scores[score].matrix)
    for point in run.result.line:
        matrix = [*rows[:-1], point.scores[score]]
        learned = new_task_plasticity(matrix, known)
        measures = (learned, forgetting_max_last(matrix), final_average(matrix))
        setting = f"{run.row.swept}, share={point.share or 0.0:g}"
        yield measured_point(method, setting, run, measures)


def _at_chance(run: Record) -> Iterator[str]:
    """What is to be kept and is not known: there is nothing to forget."""
    before = run.result.before.get(run.result.main_score, ())
    for task, score in zip(run.result.tasks, before, strict=False):
        if not task.known or score is None:
            continue
        share = 1 / len(task.classes) if task.classes else 0.0
        room = CHANCE_DEVIATIONS * math.sqrt(share * (1 - share) / max(task.test, 1))
        if score <= 100 * (share + room):
            yield (
                f"The model does not know {task.name} before training ({score:.1f} %, guessing "
                f"{100 * share:.1f} %): there is nothing to forget there."
            )
