"""The paper's Tables 1-3 again, with our figures in their places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from risegrad.lab.report.contents import column, measured
from risegrad.lab.report.metric_names import PAPER
from risegrad.lab.report.paper_tables import TABLES, Figure, PaperRow, PaperTable, plain_name
from risegrad.lab.report.rows import Experiment, ResultRow
from risegrad.pages.tables import Cell, Line, Table, by_section, ranked

OURS_ONLY = "Not in the paper"


@dataclass(frozen=True)
class Group:
    """A column of the paper's table, and the experiment of ours that stands in it."""

    column: int
    experiment: Experiment

    def rows(self, table: PaperTable) -> list[ResultRow]:
        return [
            row
            for row in self.experiment.rows
            if row.place and row.place.table is table and row.place.column == self.column
        ]


def paper_layouts(experiments: Sequence[Experiment]) -> list[Table]:
    """The tables for which there is at least one row of ours."""
    return [
        _layout(table, groups)
        for table in TABLES.values()
        if (groups := _groups(table, experiments))
    ]


def _groups(table: PaperTable, experiments: Sequence[Experiment]) -> list[Group]:
    candidates = (
        Group(index, experiment)
        for index in range(len(table.columns))
        for experiment in experiments
    )
    return [group for group in candidates if group.rows(table)]


def _layout(table: PaperTable, groups: Sequence[Group]) -> Table:
    titles = [f"{table.columns[group.column]} ({group.experiment.name})" for group in groups]
    left_out = [
        name
        for index, name in enumerate(table.columns)
        if index not in {group.column for group in groups}
    ]
    notes = ["Where a cell has two figures, the second is the paper's."]
    if left_out:
        notes.append(f"No runs for: {', '.join(left_out)}.")
    return ranked(
        Table(
            f"Table {table.number} of the paper: {table.caption}, ours beside the paper's",
            "Method" if table.number != "3" else "q",
            tuple(column(metric, title) for title in titles for metric in PAPER),
            by_section([*_paper_lines(table, groups), *_own_lines(table, groups)]),
            tuple(notes),
        )
    )


def _paper_lines(table: PaperTable, groups: Sequence[Group]) -> Iterator[tuple[str, Line]]:
    """Every row of the paper, ours or not; twice and more if several labels of ours claim it."""
    for index, paper in enumerate(table.rows):
        labels = dict.fromkeys(
            row.label
            for group in groups
            for row in group.rows(table)
            if row.place and row.place.row == index
        )
        for label in labels or [""]:
            cells = [c for group in groups for c in _cells(table, group, index, label, paper)]
            same = plain_name(label) in {"", plain_name(paper.label)}
            note = "" if same else f"ours: {label}"
            yield paper.section, Line(paper.label, tuple(cells), note)


def _cells(
    table: PaperTable, group: Group, index: int, label: str, paper: PaperRow
) -> Iterable[Cell | None]:
    ours = [
        row
        for row in group.rows(table)
        if row.place and row.place.row == index and row.label == label
    ]
    return _triple(ours[0] if ours else None, paper.figures[group.column])


def _own_lines(table: PaperTable, groups: Sequence[Group]) -> Iterator[tuple[str, Line]]:
    """Rows of the same experiments that the paper does not have, such as its missing controls."""
    own = {
        (row.section, row.label): None
        for group in groups
        for row in group.experiment.rows
        if row.place is None
    }
    sections = {row.section for row in table.rows}
    for section, label in own:
        cells: list[Cell | None] = []
        for group in groups:
            rows = group.experiment.rows
            same = [row for row in rows if (row.section, row.label) == (section, label)]
            cells += _triple(same[0] if same and same[0].place is None else None, None)
        yield section if section in sections else section or OURS_ONLY, Line(label, tuple(cells))


def _triple(row: ResultRow | None, paper: Sequence[Figure] | None) -> Iterator[Cell | None]:
    for position, metric in enumerate(PAPER):
        found = row.metric(metric.key) if row else None
        yield measured(found, paper[position] if paper else None)
