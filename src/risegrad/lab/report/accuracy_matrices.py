"""The accuracy matrices of an experiment, mean over seeds: sessions downward, tasks across."""

from __future__ import annotations

from collections.abc import Iterator

from risegrad.common.intervals import Spread, spread
from risegrad.lab.report.experiment_tables import measured
from risegrad.lab.report.report_text import spread_text
from risegrad.lab.report.result_rows import ReportedExperiment, ResultRow
from risegrad.pages.charts.matrix_chart import MatrixCell, matrices
from risegrad.pages.page_blocks import ChartFigure
from risegrad.pages.page_tables import Column, Line, Section, Table
from risegrad.pages.page_text import plural

Matrix = list[list[Spread | None]]


def matrix_figure(experiment: ReportedExperiment, score: str) -> ChartFigure | None:
    """The heat maps of all rows; None if no run has this score."""
    found = [(row, mean_matrix(row, score)) for row in experiment.rows]
    found = [(row, matrix) for row, matrix in found if any(map(any, matrix))]
    if not found:
        return None
    cells = [cell for row, matrix in found for cell in _cells(row, matrix)]
    return ChartFigure(
        f"{experiment.name}-matrices-{score}",
        f"Accuracy matrices: {score} of each task after each session, mean over seeds",
        f"Heat maps of {score} for {plural(len(found), 'row')}: one line per session, one column "
        "per task.",
        matrices(cells, f"{score} (%)"),
        _table(found, score),
    )


def task_names(row: ResultRow) -> list[str]:
    """As in the records; numbers only where the order of the tasks depends on the seed."""
    named = [tuple(task.name for task in run.result.tasks) for run in row.runs]
    same = len(set(named)) == 1
    return [
        f"task {i + 1} ({name})" if same else f"task {i + 1}" for i, name in enumerate(named[0])
    ]


def mean_matrix(row: ResultRow, score: str) -> Matrix:
    """The accuracy matrix of a row, mean over its seeds."""
    size = len(row.runs[0].result.tasks)
    found = [s for run in row.runs if (s := run.result.scores.get(score))]

    def at(t: int, i: int) -> Spread | None:
        return spread(s.at(t, i) for s in found if t < len(s.matrix))

    return [[at(t, i) for i in range(size)] for t in range(size)]


def mean_before(row: ResultRow, score: str) -> list[Spread | None]:
    """What the model could do on every task before the stream."""
    found = [run.result.before.get(score, ()) for run in row.runs]
    size = len(row.runs[0].result.tasks)
    return [spread(values[i] for values in found if i < len(values)) for i in range(size)]


def _cells(row: ResultRow, matrix: Matrix) -> Iterator[MatrixCell]:
    names = task_names(row)
    for t, line in enumerate(matrix):
        for i, value in enumerate(line):
            if value:
                tip = f"{row.label}, after session {t + 1}, {names[i]}: {spread_text(value)} %"
                yield MatrixCell(row.label, t + 1, i + 1, value.mean, tip)


def _table(found: list[tuple[ResultRow, Matrix]], score: str) -> Table:
    """A section for each row; shorter streams leave the last columns empty."""
    size = max(len(matrix) for _, matrix in found)
    sections = []
    for row, matrix in found:
        lines = [_line(f"session {t + 1}", line, size) for t, line in enumerate(matrix)]
        before = mean_before(row, score)
        if any(before):
            lines.insert(0, _line("nothing", before, size))
        sections.append(Section(row.label, tuple(lines)))
    columns = tuple(Column(f"task {i + 1}") for i in range(size))
    caption = f"{score} in percent, mean ± standard deviation over seeds"
    return Table(caption, "After", columns, tuple(sections))


def _line(label: str, values: list[Spread | None], size: int) -> Line:
    cells = [measured(value) for value in values]
    return Line(label, (*cells, *[None] * (size - len(cells))))
