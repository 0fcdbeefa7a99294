"""The report as a page: what was found, the main figure, the tables, and details to unfold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from risegrad.lab.experiments.experiment_library import LibraryEntry, library
from risegrad.lab.report.accuracy_matrices import matrix_figure
from risegrad.lab.report.metric_names import KNOWN
from risegrad.lab.report.report_figures import frontier_figure, stream_figure, sweep_figures
from risegrad.lab.report.report_methods import Method
from risegrad.lab.report.report_numbers import numbers
from risegrad.lab.report.report_parts import PAPER_CAUTION, Chapter, Report
from risegrad.lab.report.run_provenance import notes, run_table, summary_line
from risegrad.lab.report.side_scores import score_names
from risegrad.pages.page_blocks import (
    Block,
    ChartFigure,
    Fold,
    ItemList,
    Page,
    Paragraph,
    Part,
    Row,
)
from risegrad.pages.page_html import html
from risegrad.pages.page_text import plural
from risegrad.pages.palette import Palette

TITLE = "RISE report"
QUESTION = "Which method forgets least while it learns as much?"
RULES = {
    "FO": "first-order: steps along exact gradients, as AdamW and SGD make them",
    "ZO": "zeroth-order: steps from function values alone",
    "RISE": "exact gradients, shaped at random within blocks",
}
GLOSSARY = (
    *((m.title, m.meaning) for m in KNOWN),
    *RULES.items(),
    ("±", "sample standard deviation over seeds"),
    ("bold", "the best mean of a column; underlined: the second. Not of forgetting alone, which "
             "every smaller step lowers"),
)  # fmt: skip


def page(report: Report) -> str:
    """The report as one HTML file."""
    return html(report_page(report))


def report_page(report: Report) -> Page:
    """Every experiment's first screen, then the paper's layout, then everything folded away."""
    grouped = [list(chapter.methods) for chapter in report.chapters]
    palette = Palette(method.name for found in grouped for method in found)
    chapters = list(zip(report.chapters, grouped, strict=True))
    alone = len(chapters) == 1
    runs = sum(len(experiment.runs()) for experiment in report.experiments)
    return Page(
        _title(report.chapters[0]) if alone else TITLE,
        (
            *(_first(chapter, found, palette, alone) for chapter, found in chapters),
            *_paper(report),
            *(_details(chapter, found, palette) for chapter, found in chapters),
            *(part for saved in report.saved for part in saved.titled()),
            *_runs(report),
        ),
        ""
        if alone or not chapters
        else f"{plural(len(chapters), 'experiment')}, {plural(runs, 'run')}",
        tuple(_warnings(report)),
        tuple(_glossary(report).items()),
        numbers(report),
    )


def _glossary(report: Report) -> dict[str, str]:
    """The words of the parts that are there. One that means something else in a saved result, such
    as ±, is named with its kind."""
    found = dict(GLOSSARY) if report.chapters or not report.saved else {}
    for saved in report.saved:
        for word, meaning in saved.glossary:
            other = found.get(word, meaning) != meaning
            found[f"{word} ({saved.kind})" if other else word] = meaning
    return found


def _title(chapter: Chapter) -> str:
    """The title of an experiment that comes with the package, else its name."""
    return _known(chapter).title or chapter.experiment.name


def _known(chapter: Chapter) -> LibraryEntry:
    """What the package knows of the experiment; of one's own it knows nothing."""
    return library().get(chapter.experiment.name) or LibraryEntry(Path(), "")


def _first(chapter: Chapter, found: list[Method], palette: Palette, alone: bool) -> Part:
    """What a reader sees first: a sentence, the figure, the methods at equal learning."""
    figure = frontier_figure(chapter.experiment, found, palette, chapter.frontiers)
    blocks: list[Block | None] = [
        figure,
        _spelled(chapter),
        Paragraph(chapter.choice, "note") if chapter.choice else None,
        chapter.equal,
        # Rows of a sweep are compared above, at equal learning; each by itself is a detail.
        None if chapter.equal else chapter.results,
        Paragraph(summary_line(chapter.experiment), "note"),
    ]
    return Part(
        "" if alone else _title(chapter),
        tuple(block for block in blocks if block),
        _known(chapter).question or QUESTION,
        chapter.headline,
    )


def _spelled(chapter: Chapter) -> Paragraph | None:
    """The abbreviations of the results, where a reader meets them first."""
    titles = [column.title for column in chapter.results.columns]
    labels = " ".join(row.label for row in chapter.experiment.rows)
    used = [(word, meaning) for word, meaning in GLOSSARY
            if word in titles or (word in RULES and re.search(rf"\b{word}\b", labels))]  # fmt: skip
    text = " ".join(f"{word}: {meaning}." for word, meaning in used)
    return Paragraph(text, "note") if used else None


def _paper(report: Report) -> Iterator[Part]:
    if report.paper:
        yield Part("Beside the paper", (Paragraph(PAPER_CAUTION, "lead"), *report.paper))


def _details(chapter: Chapter, found: list[Method], palette: Palette) -> Part:
    every = (chapter.results,) if chapter.equal else ()
    folds = [
        Fold("At equal forgetting, and each method at its best",
             (chapter.other_ways,) if chapter.other_ways else ()),
        Fold("Every setting by itself", every),
        Fold("The choice on validation data", (chapter.chosen,) if chapter.chosen else ()),
        Fold("Compared with the baseline, metric by metric", tuple(_compared(chapter))),
        Fold("Accuracy over the stream and over the number of queries",
             tuple(_more_figures(chapter, found, palette))),
        Fold("Accuracy matrices", tuple(_matrices(chapter))),
        Fold("Costs", (chapter.costs,) if chapter.costs else ()),
        *(Fold(table.caption, (table,)) for table in (chapter.scores, *chapter.more) if table),
    ]  # fmt: skip
    title = f"Details of {chapter.experiment.name}"
    return Part(title, tuple(fold for fold in folds if fold.blocks))


def _compared(chapter: Chapter) -> Iterator[Block]:
    if chapter.differences:
        yield Row(
            tuple(ItemList(f.heading, f.sentences, f.verdict) for f in chapter.findings), "findings"
        )
    yield Paragraph(chapter.caveat, "note")
    if chapter.compared:
        yield chapter.compared


def _more_figures(chapter: Chapter, found: list[Method], palette: Palette) -> Iterator[Block]:
    experiment = chapter.experiment
    for score in score_names(experiment):
        if figure := stream_figure(experiment, found, palette, score):
            yield figure
    sweeps: tuple[ChartFigure, ...] = tuple(sweep_figures(experiment, found, palette))
    if sweeps:
        yield Row(sweeps)


def _matrices(chapter: Chapter) -> Iterator[Block]:
    for score in score_names(chapter.experiment):
        if figure := matrix_figure(chapter.experiment, score):
            yield figure


def _runs(report: Report) -> Iterator[Part]:
    if not report.chapters:
        return
    said = tuple(notes(report.experiments))
    table = Fold("Every run with its seed, time and commit", (run_table(report.experiments),))
    noted = (Fold("Notes of the runs", (ItemList("Notes of the runs", said),)),) if said else ()
    yield Part("Runs", (table, *noted))


def _warnings(report: Report) -> Iterator[ItemList]:
    if report.left_out:
        yield ItemList("Files left out", report.left_out, "warning")
    if report.remarks:
        yield ItemList("How runs became rows", report.remarks, "warning")
