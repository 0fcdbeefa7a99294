"""The accuracy matrix of a row, mean over seeds: sessions downward, tasks to the right."""

from __future__ import annotations

import math

from risegrad.lab.report.contents import measured
from risegrad.lab.report.estimates import Spread, spread
from risegrad.lab.report.markup import Markup, tag
from risegrad.lab.report.plots.canvas import READING
from risegrad.lab.report.plots.figure import figure
from risegrad.lab.report.rows import Experiment, ResultRow
from risegrad.lab.report.tables import Column, Line, Section, Table
from risegrad.lab.report.text import number, spread_text

SIDE, MARGIN = 300.0, 26.0
WRITTEN = 10
"""With more tasks than this, numbers in the cells would be too small to read."""

Matrix = list[list[Spread | None]]


def shade_range(experiment: Experiment, score: str) -> tuple[float, float]:
    """The same for all rows of an experiment, so that equal shades are equal accuracies."""
    matrices = (mean_matrix(row, score) for row in experiment.rows)
    means = [value.mean for matrix in matrices for line in matrix for value in line if value]
    if not means:
        return 0.0, 100.0
    low = 10.0 * math.floor(min(means) / 10)
    return low, max(10.0 * math.ceil(max(means) / 10), low + 10)


def heat_map(
    row: ResultRow, score: str, shades: tuple[float, float], identity: str
) -> Markup | None:
    matrix = mean_matrix(row, score)
    names = task_names(row)
    if not any(value for line in matrix for value in line):
        return None
    cells = (
        _cell(len(matrix), shades, f"after session {t + 1}, {names[i]}", t, i, value)
        for t, line in enumerate(matrix)
        for i, value in enumerate(line)
        if value
    )
    plot = tag(
        "svg",
        *_edges(len(matrix)),
        *cells,
        viewBox=f"0 0 {SIDE:g} {SIDE:g}",
        role="img",
        tabindex="0",
        class_="plot heat",
        aria_label=f"Heat map of {score} of {row.label}: one row per session, one column per task. "
        f"{READING}",
    )
    return figure(row.label, plot, _table(matrix, names, row, score), identity)


def task_names(row: ResultRow) -> list[str]:
    """As in the records; numbers only where the order of the tasks depends on the seed."""
    named = [tuple(task.name for task in run.result.tasks) for run in row.runs]
    same = len(set(named)) == 1
    return [
        f"task {i + 1} ({name})" if same else f"task {i + 1}" for i, name in enumerate(named[0])
    ]


def mean_matrix(row: ResultRow, score: str) -> Matrix:
    size = len(row.runs[0].result.tasks)

    def at(t: int, i: int) -> Spread | None:
        found = [run.result.scores.get(score) for run in row.runs]
        return spread(s.at(t, i) for s in found if s and t < len(s.matrix))

    return [[at(t, i) for i in range(size)] for t in range(size)]


def mean_before(row: ResultRow, score: str) -> list[Spread | None]:
    """What the model could do on every task before the stream."""
    found = [run.result.before.get(score, ()) for run in row.runs]
    size = len(row.runs[0].result.tasks)
    return [spread(values[i] for values in found if i < len(values)) for i in range(size)]


def _cell(
    count: int, shades: tuple[float, float], what: str, t: int, i: int, value: Spread
) -> Markup:
    """The shade follows the value; the number is written where it fits."""
    size = (SIDE - MARGIN) / count
    x, y = MARGIN + i * size, MARGIN + t * size
    strength = (value.mean - shades[0]) / (shades[1] - shades[0])
    written = None
    if count <= WRITTEN:
        place = {"x": x + size / 2, "y": y + size / 2}
        tone = "strong" if strength > 0.55 else "weak"
        written = tag("text", number(value.mean, 0), class_=f"value {tone}", **place)
    return tag(
        "g",
        tag("rect", x=x, y=y, width=size, height=size, fill_opacity=0.08 + 0.92 * strength),
        written,
        class_="mark",
        data_tip=f"{what}: {spread_text(value)} %",
        data_line=str(t),
        data_column=str(i),
    )


def _edges(count: int) -> list[Markup]:
    """Numbers of sessions and tasks, not all of them where they would touch."""
    size = (SIDE - MARGIN) / count
    every = max(1, round(22 / size))
    shown = [k for k in range(count) if k % every == 0]
    middle = [MARGIN + (k + 0.5) * size for k in shown]
    return [
        *(
            tag("text", str(k + 1), x=m, y=17.0, class_="x")
            for k, m in zip(shown, middle, strict=True)
        ),
        *(
            tag("text", str(k + 1), x=20.0, y=m + 4, class_="y")
            for k, m in zip(shown, middle, strict=True)
        ),
    ]


def _table(matrix: Matrix, names: list[str], row: ResultRow, score: str) -> Table:
    lines = [
        Line(f"session {t + 1}", tuple(measured(value) for value in line))
        for t, line in enumerate(matrix)
    ]
    before = mean_before(row, score)
    if any(before):
        lines.insert(0, Line("nothing", tuple(measured(value) for value in before)))
    columns = (Column(f"task {i + 1}", explanation=name) for i, name in enumerate(names))
    caption = f"{score} of {row.label} in percent, mean ± standard deviation over seeds"
    return Table(caption, "After", tuple(columns), (Section("", tuple(lines)),))
