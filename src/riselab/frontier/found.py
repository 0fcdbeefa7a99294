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
from riselab.pages.frontier_chart import AXES, BETTER, FrontierPoint, frontier
from riselab.pages.looks import Palette
from riselab.pages.page import (
    Block,
    ChartFigure,
    CodeBlock,
    Fold,
    ItemList,
    Page,
    Paragraph,
    Part,
    html,
    save_figures,
    svg_of,
)
from riselab.pages.tables import Column, Line, Section, Table, TableCell, in_html, spread_cell
from riselab.pages.text import for_markdown, plural, visible, visible_lines
from riselab.records.fields import Record
from riselab.report.builder import QUESTION, RULES
from riselab.report.figures import BAND, CHAT_AXES, DEVIATION, bands_of, frontier_point
from riselab.report.methods import SectionFrontier, equal_table
from riselab.report.run_points import measured_point, run_point

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
    def runs(self) -> tuple[RunPoint, ...]:
        """Every run, and every point between start and end where one was scored there."""
        own = (run_point(run.row.method, run.row.swept, run) for run in self.records)
        between = {m.label: self.methods[m.of].label for m in self.methods.values() if m.of}
        line = (
            point
            for label, base in between.items()
            for run in self.records
            if run.row.method == base
            for point in _line(label, run)
        )
        return tuple(point for point in (*own, *line) if point)

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
        table = _equal(self) or settings_table(self)
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


NAME = "frontier"
WORDS = (
    "Learned is the score on new data after training; {}. A line joins the settings of one method "
    "from its smallest rate to its largest."
)
LOST = "Forgotten", "what was lost of what must be kept, in points"
MOVED = "Drift", "how far other answers have moved, in nats per token"
MEASURES = (
    "New: the accuracy on new data right after training on them, in percent. Fgt: forgetting, the "
    "points that the data to keep lost until the end."
)
OF_CHATS = (
    "New: held-out examples that are answered exactly, in percent. Drift: how far other answers "
    "have moved, KL(then || now) in nats per token."
)
SEVERAL = " Where a share was varied too, there is a line for each rate."


def write(found: FoundFrontier, out: Path) -> FoundFrontier:
    """The page and the figure in ``out``; the same frontier, which knows where they are."""
    drawn = save_figures([figure(found)], out)
    path = out / f"{NAME}.html"
    write_text(path, html(page(found)))
    image = next(file for file in drawn if file.suffix == ".png")
    return replace(found, files={"page": str(path), "figure": str(image)})


def figure(found: FoundFrontier) -> ChartFigure:
    """Forgetting against learning, a curve for each method."""
    curves = found.frontier.curves
    measures, axes = found.frontier.measures, CHAT_AXES if found.chat else AXES
    words = WORDS.format(" is ".join(_lost(found)).lower())
    points = [_point(s, measures) for curve in curves.values() for s in curve.settings]
    bands = list(bands_of(found.frontier))
    several = SEVERAL if any(point.line for point in points) else ""
    return ChartFigure(
        NAME,
        "Forgetting against learning",
        f"Forgetting against learning for {plural(len(curves), 'method')}. {BETTER}",
        frontier(points, Palette(curves), bands, axes, ratios=found.chat),
        settings_table(found),
        f"{BETTER} {words}{several} {DEVIATION}{BAND if bands else ''}",
    )


def _point(setting: SweepSetting, measures: Measures) -> FrontierPoint:
    learned, forgotten = _spread(setting, "learned"), _spread(setting, "forgotten")
    name, idle = setting.name.replace("=", " "), not setting.learned_something
    label = f"{setting.method}, {name}"
    return frontier_point(
        setting.method, label, learned, forgotten, name, idle, setting.line, measures
    )


def _spread(setting: SweepSetting, of: str) -> Estimate:
    found = estimate([getattr(run, of) for run in setting.runs.values()])
    assert found is not None, "a setting has at least one run"
    return found


def _cell(setting: SweepSetting, of: str, measures: Measures) -> TableCell | None:
    found, idle = _spread(setting, of), not setting.learned_something
    if of == "forgotten":
        found = found.times(measures.factor)
        return spread_cell(found, idle=idle, digits=measures.digits + 1)
    return spread_cell(found, idle=idle)


def settings_table(found: FoundFrontier) -> Table:
    """Every setting: what it learned and forgot, and what is known at the end."""
    sections, measures, (name, meaning) = [], found.frontier.measures, _lost(found)
    for curve in found.frontier.curves.values():
        lines = (
            Line(
                setting.name,
                tuple(_cell(setting, of, measures) for of in ("learned", "forgotten", "final")),
            )
            for setting in curve.settings
        )
        sections.append(Section(curve.name, tuple(lines)))
    columns = (
        Column("Learned", better=1, explanation="score on new data after training, in percent"),
        Column(name, better=-1, explanation=meaning),
        Column("At the end", better=1, explanation="all that is scored at the end, in percent"),
    )
    caption = "Every setting: mean ± standard deviation over seeds"
    return Table(caption, "Setting", columns, tuple(sections))


def _lost(found: FoundFrontier) -> tuple[str, str]:
    return MOVED if found.chat else LOST


def _equal(found: FoundFrontier) -> Table | None:
    parts = [SectionFrontier("", found.frontier)] if found.alive else []
    return equal_table("this search", parts)


def page(found: FoundFrontier) -> Page:
    """One sentence, one figure, one table, and the code for the best setting."""
    equal = _equal(found)
    blocks: list[Block] = [Paragraph(spelled(found), "note"), figure(found)]
    if found.remarks:
        blocks.append(ItemList("What to know", found.remarks, "warning"))
    blocks += [equal] if equal else []
    if best := _best(found):
        blocks.append(replace(best.use, title=f"{best.use.title}: {best}"))
    details = Fold("Every setting", (settings_table(found),))
    return Page(
        found.title,
        (Part("", tuple(blocks), QUESTION, found.sentence), Part("Details", (details,))),
        f"{plural(len(found.records), 'run')}",
    )


def spelled(found: FoundFrontier) -> str:
    """What the abbreviations mean, said where a reader meets them first."""
    labels = " ".join(found.frontier.curves)
    used = (f"{name}: {words}." for name, words in RULES.items() if name in labels.split())
    return " ".join(filter(None, (OF_CHATS if found.chat else MEASURES, *used, found.untrained)))


def _best(found: FoundFrontier) -> BestSetting | None:
    try:
        return found.winner
    except ValueError:
        return None
