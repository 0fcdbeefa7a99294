"""From records to a report: what it says, its page, and the files that ``rise report`` writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from risegrad.common.files import write_text
from riselab.experiments.file import LibraryEntry, library
from riselab.pages.charts import Palette
from riselab.pages.page import (
    Block,
    ChartFigure,
    Fold,
    ItemList,
    Page,
    Paragraph,
    Part,
    html,
    markdown,
    save_figures,
)
from riselab.pages.tables import Column, Line, Table, TableCell, by_section
from riselab.pages.text import number, plural, visible
from riselab.records.fields import Record
from riselab.records.record import RecordError
from riselab.report import tables
from riselab.report.figures import frontier_figure, matrix_figure, stream_figure
from riselab.report.methods import (
    SectionFrontier,
    beside_table,
    equal_table,
    frontiers,
    methods,
)
from riselab.report.rows import ReportedExperiment, gather

TITLE = "RISE report"
SINGLE = "Single settings, not compared at equal learning."
QUESTION = "Which method forgets least while it learns as much?"
RULES = {
    "FO": "first-order: steps along exact gradients, as AdamW and SGD make them",
    "ZO": "zeroth-order: steps from function values alone",
    "RISE": "exact gradients, shaped at random within blocks",
}
COMMON = {
    **RULES,
    "±": "sample standard deviation over seeds",
    "bold": "the best mean of a column; underlined: the second. Forgetting alone has no best, "
    "because every smaller step lowers it",
}


class Chapter:
    """What is said of one experiment."""

    def __init__(
        self, experiment: ReportedExperiment, compared: Sequence[SectionFrontier] | None = None
    ) -> None:
        name = experiment.name
        self.experiment = experiment
        self.methods = methods(experiment)
        own = frontiers(experiment, self.methods) if compared is None else compared
        self.frontiers = own
        self.differences = list(tables.differences(experiment))
        self.results = tables.results(experiment)
        self.equal = equal_table(name, self.frontiers, self.methods)
        self.halfway = equal_table(name, self.frontiers, halfway=True)
        self.beside = beside_table(experiment, self.frontiers, self.methods)
        self.choice = tables.choice_sentence(experiment)
        known = library().get(name) or LibraryEntry(Path(), "")  # of one's own: nothing
        self.title, self.question = known.title or name, known.question or QUESTION

    @property
    def headline(self) -> str:
        """The finding in a sentence: at equal learning where that can be said."""
        return " ".join(one.sentence for one in self.frontiers) or SINGLE

    def first(self, palette: Palette, title: str) -> Part:
        """What a reader sees first: a sentence, the figure, the methods at equal learning.

        Rows of a sweep are compared there; each by itself is a detail.
        """
        blocks = (
            frontier_figure(self.experiment, self.methods, palette, self.frontiers),
            Paragraph(self.choice, "note") if self.choice else None,
            self.equal or self.results,
            self.beside,
            Paragraph(summary_line(self.experiment), "note"),
        )
        shown = tuple(block for block in blocks if block)
        return Part(title, shown, self.question, self.headline)

    def details(self, palette: Palette) -> Part:
        """Everything else, folded away."""
        one, found = self.experiment, self.methods
        scores = dict.fromkeys(name for run in one.runs() for name in run.result.scores)
        folds: dict[str, Sequence[Block | None]] = {
            "At less learning": [self.halfway],
            "Every setting": [self.results if self.equal else None],
            "The choice on validation data": [tables.choice_table(one)],
            "Against the baseline": [tables.difference_table(one, self.differences)],
            "Accuracy over the stream": [stream_figure(one, found, palette, s) for s in scores],
            "Accuracy matrices": [matrix_figure(one, score) for score in scores],
            "Time and memory": [tables.costs(one)],
        }
        made = (Fold(title, tuple(b for b in blocks if b)) for title, blocks in folds.items())
        return Part(f"Details of {one.name}", tuple(fold for fold in made if fold.blocks))

    def small_figure(self, only: Sequence[str]) -> ChartFigure | None:
        """These methods alone, to be read in a column as narrow as a phone."""
        chosen = [method for name in only for method in self.methods if method.name == name]
        palette = Palette(method.name for method in chosen)
        return frontier_figure(self.experiment, chosen, palette, self.frontiers, small=True)


MOST_VALUES = 6
"""So many different values of one setting are named; more are counted."""


def summary_line(experiment: ReportedExperiment) -> str:
    """Rows, runs, seeds, tasks and versions of an experiment in one line."""
    runs = experiment.runs()
    found: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for key, value in _facts(run):
            found[key].add(value)
    parts = [
        plural(len(experiment.rows), "row"),
        plural(len(runs), "run"),
        f"seeds {_listed(str(run.seed) for run in runs)}",
        f"tasks {_listed(str(len(run.result.tasks)) for run in runs)}",
        *(f"{key} {_listed(values)}" for key, values in found.items()),
    ]
    return " · ".join(parts)


def _facts(run: Record) -> Iterator[tuple[str, str]]:
    packages = run.run.environment.get("packages")
    given = {
        "stream": run.setting("stream", "name"),
        "model": run.setting("model", "name"),
        "python": run.run.environment.get("python"),
        "torch": packages.get("torch") if isinstance(packages, Mapping) else None,
        "commit": _commit(run),
    }
    for key, value in given.items():
        if isinstance(value, str | int | float) and value != "":
            yield key, str(value)


def _commit(run: Record) -> str:
    commit: Any = run.run.git.get("commit")
    changed = " with local changes" if run.run.git.get("dirty") is True else ""
    return commit[:12] + changed if isinstance(commit, str) and commit else ""


def _listed(values: Iterable[str]) -> str:
    given = sorted(set(values), key=lambda text: (len(text), text))
    if len(given) > MOST_VALUES:
        return f"{given[0]} to {given[-1]} ({len(given)} different)"
    return ", ".join(given)


def run_table(experiments: Sequence[ReportedExperiment]) -> Table:
    """The table of all runs."""
    lines = (
        (experiment.name, _run_line(row.label, run))
        for experiment in experiments
        for row in experiment.rows
        for run in row.runs
    )
    columns = ("Seed", "Finished", "Total s", "Resumed", "Commit", "Configuration")
    return Table("All runs of this report", "Row", tuple(map(Column, columns)), by_section(lines))


def _run_line(label: str, run: Record) -> Line:
    total, commit = run.run.seconds.total, _commit(run)
    return Line(
        label,
        (
            TableCell(str(run.seed), order=run.seed),
            TableCell(run.run.finished) if run.run.finished else None,
            None if total is None else TableCell(number(total, 1), order=total),
            TableCell(str(run.run.resumed), order=run.run.resumed),
            TableCell(commit) if commit else None,
            TableCell(run.id[:12]),
        ),
    )


def notes(experiments: Sequence[ReportedExperiment]) -> list[str]:
    """What the runs themselves had to say; the same note of several runs once."""
    found: dict[str, list[str]] = defaultdict(list)
    for experiment in experiments:
        for row in experiment.rows:
            for run in row.runs:
                for note in filter(None, [*run.result.notes, run.row.why]):
                    found[note].append(f"{experiment.name}, {row.label}, seed {run.seed}")
    return [f"{_where(places)}: {note}" for note, places in found.items()]


def _where(places: Sequence[str]) -> str:
    more = f" and {plural(len(places) - 1, 'other run')}" if len(places) > 1 else ""
    return places[0] + more


@dataclass(frozen=True, eq=False)
class Report:
    """A chapter for each experiment, and what a reader should know of how it was made."""

    chapters: tuple[Chapter, ...]
    left_out: tuple[str, ...]
    """files that could not be used, with the reason"""
    remarks: tuple[str, ...]
    """how runs became rows"""

    @property
    def experiments(self) -> list[ReportedExperiment]:
        """The experiments of all chapters."""
        return [chapter.experiment for chapter in self.chapters]

    @cached_property
    def page(self) -> Page:
        """Every experiment's first screen, then everything else folded away."""
        chapters, alone = self.chapters, len(self.chapters) == 1
        palette = Palette(method.name for chapter in chapters for method in chapter.methods)
        runs = sum(len(experiment.runs()) for experiment in self.experiments)
        counted = f"{plural(len(chapters), 'experiment')}, {plural(runs, 'run')}"
        first = (chapter.first(palette, "" if alone else chapter.title) for chapter in chapters)
        warnings = (("Files left out", self.left_out), ("How runs became rows", self.remarks))
        return Page(
            chapters[0].title if alone else TITLE,
            (
                *first,
                *(chapter.details(palette) for chapter in chapters),
                *self._runs(),
            ),
            counted if len(chapters) > 1 else "",
            tuple(ItemList(title, items, "warning") for title, items in warnings if items),
            tuple(self._glossary()),
        )  # fmt: skip

    def _glossary(self) -> Iterator[tuple[str, str]]:
        """The words of this page; those that mean two things on it stand there once for each."""
        for metrics in dict.fromkeys(tables.known(one) for one in self.experiments):
            yield from ((metric.title, metric.meaning) for metric in metrics)
        yield from COMMON.items()

    def _runs(self) -> Iterator[Part]:
        said = tuple(notes(self.experiments))
        folds = [Fold("Every run with its seed, time and commit", (run_table(self.experiments),))]
        folds += [Fold("Notes of the runs", (ItemList("", said),))] if said else []
        yield Part("Runs", tuple(folds))

    def plain(self) -> str:
        """The results and what was found, for a terminal, where one sees the last lines."""
        lines: list[str] = []
        for chapter in self.chapters:
            for table in filter(None, (chapter.results, chapter.equal, chapter.beside)):
                notes = () if table is chapter.results else map(visible, table.notes)
                lines += [visible(table.caption), *table.plain(), *notes, ""]
            lines += [visible(said) for said in (chapter.choice, chapter.headline) if said] + [""]
        return "\n".join(lines)


def build(
    records: Iterable[Record],
    problems: Sequence[RecordError] = (),
    baseline: str | None = None,
) -> Report:
    """From records to a report; ``problems`` are the files that could not be read."""
    experiments, remarks = gather(records, baseline)
    return Report(
        tuple(map(Chapter, experiments)),
        tuple(str(problem) for problem in problems),
        tuple(remarks),
    )


def write_report(
    report: Report, out: Path, figures: Path | None = None, only: Sequence[str] = ()
) -> list[Path]:
    """The page at ``out`` and its tables as Markdown beside it; returns the paths of both.

    Both texts are made before the first is written, so that a failure leaves the old ones. The
    charts go to the folder ``figures`` if there is one, each as SVG and as PNG; so does a small one
    of the methods in ``only``, light and dark.
    """
    few = [chapter.small_figure(only) for chapter in report.chapters] if only else []
    texts = {out: html(report.page), out.with_suffix(".md"): markdown(report.page)}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_text(path, text)
    except OSError as error:
        raise _unwritable("--out", out, error) from error
    if figures is not None:
        try:
            save_figures([*report.page.figures(), *filter(None, few)], figures)
        except OSError as error:
            raise _unwritable("--figures", figures, error) from error
    return list(texts)


def _unwritable(option: str, path: Path, error: OSError) -> RuntimeError:
    reason = error.strerror or str(error)
    return RuntimeError(f"{option} must be a place that can be written, got {path} ({reason})")
