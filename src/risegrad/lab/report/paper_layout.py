"""The paper's Tables 1-3 again, with our figures in their places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from risegrad.lab.report.experiment_tables import IDLE, column, measured
from risegrad.lab.report.metric_names import PAPER
from risegrad.lab.report.paper_settings import setting
from risegrad.lab.report.paper_tables import TABLES, PaperFigure, PaperRow, PaperTable, plain_name
from risegrad.lab.report.result_rows import ReportedExperiment, ResultRow
from risegrad.pages.page_tables import Line, Table, TableCell, by_section, ranked

OURS_ONLY = "Not in the paper"


@dataclass(frozen=True)
class PaperGroup:
    """A column of the paper's table, and our rows in it.

    Those are rows of one experiment that differ from the paper's setting in the same things.
    """

    column: int
    experiment: ReportedExperiment
    apart: tuple[str, ...]

    def rows(self, table: PaperTable) -> list[ResultRow]:
        """Our rows that belong in this column of the paper's table."""
        return [row for row in _in_column(table, self) if row.apart == self.apart]

    def title(self, table: PaperTable) -> str:
        """The title above the column."""
        name = self.experiment.name
        return name if self.apart else f"{table.columns[self.column]} ({name})"


def _in_column(table: PaperTable, group: PaperGroup) -> list[ResultRow]:
    return [
        row
        for row in group.experiment.rows
        if row.place and row.place.table is table and row.place.column == group.column
    ]


def paper_layouts(experiments: Sequence[ReportedExperiment]) -> list[Table]:
    """The tables for which there is at least one row of ours.

    Rows in the paper's setting share one; all others stand below a heading that says what differs.
    """
    found = []
    for table in TABLES.values():
        groups = _groups(table, experiments)
        if same := [group for group in groups if not group.apart]:
            found.append(_beside(table, same))
        found += [_elsewhere(table, group) for group in groups if group.apart]
    return found


def _groups(table: PaperTable, experiments: Sequence[ReportedExperiment]) -> list[PaperGroup]:
    columns = (
        PaperGroup(index, experiment, ())
        for index in range(len(table.columns))
        for experiment in experiments
    )
    return [
        replace(column, apart=apart)
        for column in columns
        for apart in sorted({row.apart for row in _in_column(table, column)})
    ]


def _beside(table: PaperTable, groups: Sequence[PaperGroup]) -> Table:
    left_out = [
        name
        for index, name in enumerate(table.columns)
        if index not in {group.column for group in groups}
    ]
    caption = f"Table {table.number} of the paper: {table.caption}, ours beside the paper's"
    notes = [f"No runs for: {', '.join(left_out)}."] if left_out else []
    return _layout(table, groups, caption, notes)


def _elsewhere(table: PaperTable, group: PaperGroup) -> Table:
    caption = (
        f"Table {table.number} in another setting; the paper: {setting(table, group.column)}; "
        f"here ({group.experiment.name}): {', '.join(group.apart)}"
    )
    return _layout(table, [group], caption, ["Figures of two settings cannot be compared."])


def _layout(
    table: PaperTable, groups: Sequence[PaperGroup], caption: str, notes: Sequence[str]
) -> Table:
    titles = [group.title(table) for group in groups]
    return ranked(
        Table(
            caption,
            "Method" if table.number != "3" else "q",
            # Forgetting too has a best here, because the paper's own table marks one.
            tuple(replace(column(m, title), ranked=True) for title in titles for m in PAPER),
            by_section([*_paper_lines(table, groups), *_own_lines(table, groups)]),
            ("Where a cell has two figures, the second is the paper's.", *notes),
        )
    )


def _paper_lines(table: PaperTable, groups: Sequence[PaperGroup]) -> Iterator[tuple[str, Line]]:
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
            note = [] if same else [f"ours: {label}"]
            note += [IDLE] * any(cell and not cell.compared for cell in cells)
            yield paper.section, Line(paper.label, tuple(cells), ", ".join(note))


def _cells(
    table: PaperTable, group: PaperGroup, index: int, label: str, paper: PaperRow
) -> Iterable[TableCell | None]:
    ours = [
        row
        for row in group.rows(table)
        if row.place and row.place.row == index and row.label == label
    ]
    return _triple(ours[0] if ours else None, paper.figures[group.column])


def _own_lines(table: PaperTable, groups: Sequence[PaperGroup]) -> Iterator[tuple[str, Line]]:
    """Rows of the same experiments that the paper does not have, such as its missing controls."""
    own = {
        (row.section, row.label): None
        for group in groups
        for row in group.experiment.rows
        if row.place is None
    }
    sections = {row.section for row in table.rows}
    for section, label in own:
        cells: list[TableCell | None] = []
        shown: list[ReportedExperiment] = []
        for group in groups:
            rows = [] if group.experiment in shown else group.experiment.rows
            shown.append(group.experiment)
            same = [row for row in rows if (row.section, row.label) == (section, label)]
            cells += _triple(same[0] if same and same[0].place is None else None, None)
        note = IDLE * any(cell and not cell.compared for cell in cells)
        heading = section if section in sections else section or OURS_ONLY
        yield heading, Line(label, tuple(cells), note)


def _triple(
    row: ResultRow | None, paper: Sequence[PaperFigure] | None
) -> Iterator[TableCell | None]:
    for position, metric in enumerate(PAPER):
        found = row.metric(metric.key) if row else None
        yield measured(found, paper[position] if paper else None, idle=bool(row and row.idle))
