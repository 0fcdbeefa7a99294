"""The report as a page: what was found, the main figure, the tables, and details to unfold."""

from __future__ import annotations

from collections.abc import Iterator

from risegrad.lab.library import titles
from risegrad.lab.report.figures import frontier_figure, stream_figure, sweep_figures
from risegrad.lab.report.findings import headline
from risegrad.lab.report.matrices import matrix_figure
from risegrad.lab.report.methods import Method, methods
from risegrad.lab.report.metric_names import KNOWN
from risegrad.lab.report.numbers import numbers
from risegrad.lab.report.provenance import notes, run_table, summary_line
from risegrad.lab.report.report import PAPER_CAUTION, Chapter, Report
from risegrad.lab.report.scores import score_names
from risegrad.pages.blocks import Block, Figure, Fold, Items, Page, Paragraph, Part, Row
from risegrad.pages.html import html
from risegrad.pages.palette import Palette
from risegrad.pages.text import plural

TITLE = "RISE report"
QUESTION = "Which method forgets least while it learns as much?"
GLOSSARY = (
    *((m.title, m.meaning) for m in KNOWN),
    ("FO", "first-order: steps along exact gradients, as AdamW and SGD make them"),
    ("ZO", "zeroth-order: steps from function values alone"),
    ("RISE", "exact gradients, shaped at random within blocks"),
    ("±", "sample standard deviation over seeds"),
    ("bold", "the best mean of a column; underlined: the second"),
)


def page(report: Report) -> str:
    return html(report_page(report))


def report_page(report: Report) -> Page:
    """Every experiment's first screen, then the paper's layout, then everything folded away."""
    grouped = [methods(chapter.experiment) for chapter in report.chapters]
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
            _runs(report),
        ),
        "" if alone else f"{plural(len(chapters), 'experiment')}, {plural(runs, 'run')}",
        tuple(_warnings(report)),
        GLOSSARY,
        numbers(report),
    )


def _title(chapter: Chapter) -> str:
    """The title of an experiment that comes with the package, else its name."""
    return titles().get(chapter.experiment.name) or chapter.experiment.name


def _first(chapter: Chapter, found: list[Method], palette: Palette, alone: bool) -> Part:
    """What a reader sees first.

    ``headline`` is the slot for one sentence; at equal learning, the frontier has a better one.
    """
    figure = frontier_figure(chapter.experiment, found, palette)
    blocks: list[Block | None] = [
        figure,
        chapter.results,
        Paragraph(summary_line(chapter.experiment), "note"),
    ]
    return Part(
        "" if alone else _title(chapter),
        tuple(block for block in blocks if block),
        QUESTION,
        headline(chapter.differences),
    )


def _paper(report: Report) -> Iterator[Part]:
    if report.paper:
        yield Part("Beside the paper", (Paragraph(PAPER_CAUTION, "lead"), *report.paper))


def _details(chapter: Chapter, found: list[Method], palette: Palette) -> Part:
    folds = [
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
            tuple(Items(f.heading, f.sentences, f.verdict) for f in chapter.findings), "findings"
        )
    yield Paragraph(chapter.caveat, "note")
    if chapter.compared:
        yield chapter.compared


def _more_figures(chapter: Chapter, found: list[Method], palette: Palette) -> Iterator[Block]:
    experiment = chapter.experiment
    for score in score_names(experiment):
        if figure := stream_figure(experiment, found, palette, score):
            yield figure
    sweeps: tuple[Figure, ...] = tuple(sweep_figures(experiment, found, palette))
    if sweeps:
        yield Row(sweeps)


def _matrices(chapter: Chapter) -> Iterator[Block]:
    for score in score_names(chapter.experiment):
        if figure := matrix_figure(chapter.experiment, score):
            yield figure


def _runs(report: Report) -> Part:
    said = tuple(notes(report.experiments))
    table = Fold("Every run with its seed, time and commit", (run_table(report.experiments),))
    noted = (Fold("Notes of the runs", (Items("Notes of the runs", said),)),) if said else ()
    return Part("Runs", (table, *noted))


def _warnings(report: Report) -> Iterator[Items]:
    if report.left_out:
        yield Items("Files left out", report.left_out, "warning")
    if report.remarks:
        yield Items("How runs became rows", report.remarks, "warning")
