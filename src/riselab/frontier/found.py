"""The result of a search: its curves, the best setting, and warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from risegrad.common.files import write_text
from risegrad.common.imports import need
from riselab.common.intervals import Estimate, estimate
from riselab.continual.metrics import final_average, forgetting_max_last, new_task_plasticity
from riselab.frontier.curves import ERRORS, NATS, POINTS, Measures, RunPoint, SweepSetting
from riselab.frontier.equal_learning import EqualLearning, Frontier
from riselab.frontier.lines import code_of
from riselab.frontier.problem import FrontierMethod
from riselab.pages.charts import Palette
from riselab.pages.page import (
    ChartFigure,
    CodeBlock,
    ItemList,
    Page,
    Paragraph,
    Part,
    html,
    save_figures,
    svg_of,
)
from riselab.pages.tables import in_html
from riselab.pages.text import for_markdown, visible, visible_lines
from riselab.records.fields import LinePoint, Record, ScoreRecord
from riselab.report.builder import QUESTION, Chapter
from riselab.report.figures import frontier_figure, in_short
from riselab.report.methods import SectionFrontier, methods
from riselab.report.rows import gather, run_point

if TYPE_CHECKING:
    from pandas import DataFrame

    from riselab.pages.charts import AnyChart


CHANCE_DEVIATIONS = 2.0


@dataclass(frozen=True)
class BestSetting:
    """One method at one setting, with intervals over its seeds."""

    method: str
    setting: str
    learned: Estimate
    forgotten: Estimate
    use: CodeBlock
    """lines that train so"""
    measures: Measures = POINTS

    @property
    def code(self) -> tuple[str, ...]:
        """The lines alone."""
        return self.use.lines

    def _repr_markdown_(self) -> str:
        """For notebooks: the setting, and its lines in a block that can be copied."""
        return f"{for_markdown(str(self))}\n\n{self.use.markdown()}"

    def __str__(self) -> str:
        ends, words = self.forgotten, self.measures
        between = ""
        if ends.low is not None and ends.high is not None:
            between = f" (95 % interval {words.amount(ends.low)} to {words.amount(ends.high)})"
        return (
            f"{self.method} at {self.setting}: learns {self.learned.mean:.1f} %, "
            f"{words.verb} {words.amount(ends.mean)} {words.unit}{between}"
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
    files: Mapping[str, str] = field(default_factory=dict)
    """what was written: ``page`` and ``figure``"""

    @cached_property
    def all_records(self) -> tuple[Record, ...]:
        """Those of the runs, and one for every point between start and end that a run scored."""
        between = {m.label: self.methods[m.of].label for m in self.methods.values() if m.of}
        points = (
            between_record(label, run, point)
            for label, base in between.items()
            for run in self.records
            if run.row.method == base
            for point in run.result.line
        )
        return (*self.records, *points)

    @cached_property
    def runs(self) -> tuple[RunPoint, ...]:
        """Every run and every point between start and end."""
        points = (run_point(run.row.method, run.row.swept, run) for run in self.all_records)
        return tuple(point for point in points if point)

    @cached_property
    def chapter(self) -> Chapter:
        """What a report says of the runs."""
        (experiment,), _ = gather(self.all_records)
        rows = tuple(row for method in methods(experiment) for row in method.rows)
        compared = [SectionFrontier("", self.frontier)] if self.alive else []
        return Chapter(replace(experiment, name="this search", rows=rows), compared)

    @cached_property
    def frontier(self) -> Frontier:
        """Forgetting against learning, with the usual optimizers as the reference."""
        if not self.runs:
            reason = f": {self.failed[0]}" if self.failed else ", the time was too short"
            raise RuntimeError(f"no run is done{reason}")
        there = {run.method for run in self.runs}
        usual = [m.label for m in self.methods.values() if m.reference and m.label in there]
        return Frontier(self.runs, usual, NATS if self.chat else POINTS)

    @property
    def chat(self) -> bool:
        """Whether the drift of other answers stands for forgetting."""
        return any(run.config["domain"] == "chat" for run in self.records)

    @cached_property
    def sentence(self) -> str:
        """The finding in one sentence."""
        return self.frontier.sentence() if self.alive else self._nothing

    @property
    def alive(self) -> bool:
        """Whether any setting learned something."""
        return any(curve.front for curve in self.frontier.curves.values())

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
        """The method that clearly forgets less at equal learning (with one seed: that does so), at
        its best end; else the best of the references: nothing else was worth its lines."""
        clear = [f.method for f in self.frontier.comparisons if _ahead(f)]
        names = clear[:1] or self.frontier.references
        settings = [s for n in names for s in self.frontier.curves[n].settings]
        alive = [s for s in settings if s.learned_something]
        if not alive:
            raise ValueError("no setting learned more than an untrained model")
        return self._described(max(alive, key=lambda setting: setting.final))

    def frame(self) -> DataFrame:
        """One row per run (pandas), with the seconds that it took."""
        pandas = need("pandas", "lab")
        seconds = {(r.row.method, r.row.swept, r.seed): r.run.seconds.total for r in self.records}
        rows = [
            asdict(run) | {"seconds": seconds.get((run.method, run.setting, run.seed))}
            for run in self.runs
        ]
        found: DataFrame = pandas.DataFrame(rows)
        return found

    def figure(self) -> AnyChart:
        """The chart (altair): forgetting against learning."""
        return figure(self).chart

    def _repr_html_(self) -> str:
        """For notebooks: the sentence, the figure and the remarks."""
        remarks = "".join(f"<li>{in_html(remark)}</li>" for remark in self.remarks)
        listed = f"<ul>{remarks}</ul>" if remarks else ""
        return f"<p>{in_html(self.sentence)}</p>{svg_of(figure(self))}{listed}"

    def __str__(self) -> str:
        """For a terminal: the table, the sentence, the lines of code and the files."""
        table = self.chapter.equal or self.chapter.results
        lines = [spelled(self), "", visible(table.caption), *table.plain()]
        lines += [*map(visible, table.notes), "", *map(visible, self.remarks)]
        lines += [visible(self.sentence), ""]
        if best := _best(self):
            code = (f"    {visible_lines(line)}".rstrip() for line in best.code)
            lines += [f"{best.use.title}: {visible(str(best))}", *code, ""]
        if self.files:
            lines.append(f"figure: {self.files['figure']}; page: {self.files['page']}")
        return "\n".join(lines)

    def _described(self, setting: SweepSetting) -> BestSetting:
        runs = tuple(setting.runs.values())
        learned, forgotten = (
            estimate([r.learned for r in runs]),
            estimate([r.forgotten for r in runs]),
        )
        assert learned is not None
        assert forgotten is not None
        method = next(m for m in self.methods.values() if m.label == setting.method)
        label = self.methods[method.of].label if method.of else method.label
        swept = setting.name.partition(", share=")[0]
        run = next(r for r in self.records if (r.row.method, r.row.swept) == (label, swept))
        use = code_of(run, setting.knobs.get("share", ""))
        measures = self.frontier.measures
        return BestSetting(setting.method, setting.name, learned, forgotten, use, measures)

    def _remarks(self) -> Iterator[str]:
        yield from dict.fromkeys(note for run in self.records[:1] for note in _at_chance(run))
        idle = [curve.name for curve in self.frontier.curves.values() if not curve.front]
        if 0 < len(idle) < len(self.frontier.curves):
            yield f"Learned nothing at any rate, so not compared: {', '.join(idle)}."
        if self.cut:
            yield f"Cut to fit the time: {'; '.join(self.cut)}."
        if self.failed:
            yield f"Failed runs: {len(self.failed)}, the first {self.failed[0]}"


def _ahead(found: EqualLearning) -> bool:
    alone = found.verdict == "one seed" and found.difference is not None
    return found.verdict == "less" or (alone and found.difference.mean < 0)  # type: ignore[union-attr]


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


def between_record(method: str, run: Record, point: LinePoint) -> Record:
    """A run as it would be at a point on the way back, whose scores end its matrix."""
    result, score = run.result, run.result.main_score
    matrix = (*result.scores[score].matrix[:-1], point.scores[score])
    learned = new_task_plasticity([*matrix], sum(task.known for task in result.tasks))
    metrics = {"plasticity": learned, "forgetting": forgetting_max_last([*matrix]),
               "final_average": final_average([*matrix])}  # fmt: skip
    swept = f"{run.row.swept}, share={point.share or 0.0:g}"
    row = replace(run.row, label=f"{method} ({swept})", method=method, swept=swept, baseline=False,
                  order=run.row.order + LAST)  # fmt: skip
    scores = {score: ScoreRecord(matrix)}
    return replace(run, row=row, result=replace(result, scores=scores, metrics=metrics))


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


NAME = "frontier"
LAST = 10_000
"""Rows of points between come behind those of runs."""


def write(found: FoundFrontier, out: Path) -> FoundFrontier:
    """The page and the figure in ``out``; the same frontier, which knows where they are."""
    drawn = save_figures([figure(found)], out)
    path = out / f"{NAME}.html"
    write_text(path, html(page(found)))
    image = next(file for file in drawn if file.suffix == ".png")
    return replace(found, files={"page": str(path), "figure": str(image)})


def figure(found: FoundFrontier) -> ChartFigure:
    """Forgetting against learning, a curve for each method."""
    chapter = found.chapter
    drawn = frontier_figure(
        chapter.experiment, chapter.methods, Palette(m.name for m in chapter.methods),
        chapter.frontiers,
    )  # fmt: skip
    assert drawn is not None, "there is a point"
    return replace(drawn, name=NAME)


def page(found: FoundFrontier) -> Page:
    """One sentence, one figure, one table, and the code for the best setting; then details."""
    chapter = found.chapter
    palette = Palette(method.name for method in chapter.methods)
    blocks = [*chapter.first(palette, "").blocks]
    if found.untrained:
        blocks.insert(1, Paragraph(found.untrained, "note"))
    if found.remarks:
        blocks.insert(1, ItemList("What to know", found.remarks, "warning"))
    if best := _best(found):
        blocks.append(replace(best.use, title=f"{best.use.title}: {best}"))
    first = Part("", tuple(blocks), QUESTION, found.sentence)
    return Page(found.title, (first, chapter.details(palette)))


def spelled(found: FoundFrontier) -> str:
    """What the abbreviations mean, and what the model knew before."""
    words = in_short(["New", "Drift" if found.chat else "Fgt", *found.frontier.curves])
    return f"{words} {found.untrained}".rstrip()


def _best(found: FoundFrontier) -> BestSetting | None:
    try:
        return found.winner
    except ValueError:
        return None
