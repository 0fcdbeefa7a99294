"""Methods at equal learning: the frontiers of an experiment, their sentence and their table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from risegrad.common.intervals import Interval
from risegrad.lab.frontier.equal_learning import EqualLearning, Frontier
from risegrad.lab.frontier.frontier_curves import SweepSetting
from risegrad.lab.report.experiment_tables import PERCENT
from risegrad.lab.report.report_methods import Method
from risegrad.lab.report.report_text import interval_text
from risegrad.pages.page_tables import Column, Line, Table, TableCell, by_section
from risegrad.pages.page_text import number, signed

VERDICTS = {
    "less": "forgets less",
    "more": "forgets more",
    "open": "not clearly different",
    "one seed": "not judged: one seed",
    "no common range": "not compared: no learning in common",
    "learned nothing": "not compared: learned nothing",
}
SIGNS = {"less": "better", "more": "worse", "open": "open"}
# The verdict comes first: on a phone the last columns are off the screen.
COLUMNS = (
    Column("In words", text=True),
    Column(
        "Difference", explanation="method minus reference, paired by seed; below 0: it forgets less"
    ),
    Column("at New", explanation="the new-task accuracy at which both were read, in percent"),
    Column("Fgt", explanation="forgetting of the method there"),
    Column("Fgt of reference", explanation="forgetting of the reference there"),
)


@dataclass(frozen=True)
class SectionFrontier:
    """The methods of one section of an experiment, beside its swept baselines."""

    section: str
    found: Frontier

    @property
    def sentence(self) -> str:
        """The finding in one sentence, after the section's name if it has one."""
        text = self.found.sentence()
        return f"{self.section}: {text}" if self.section else text


def frontiers(methods: Sequence[Method]) -> list[SectionFrontier]:
    """One for each section whose baseline was run at several settings; elsewhere a comparison at
    equal learning has nothing to read between."""
    sections = dict.fromkeys(method.rows[0].section for method in methods)
    found = (_frontier(s, [m for m in methods if m.rows[0].section == s]) for s in sections)
    return [one for one in found if one]


def _frontier(section: str, methods: Sequence[Method]) -> SectionFrontier | None:
    runs = [point for m in methods for row in m.rows for point in row.points(m.name)]
    known = {point.method for point in runs}
    marked = [m for m in methods if any(row.baseline for row in m.rows) and m.name in known]
    if not any(len(m.rows) > 1 for m in marked):
        return None
    return SectionFrontier(section, Frontier(runs, [m.name for m in marked]))


def headline(found: Sequence[SectionFrontier]) -> str:
    """The findings of all sections, one sentence each."""
    return " ".join(one.sentence for one in found)


def equal_table(name: str, found: Sequence[SectionFrontier]) -> Table | None:
    """One line for each method: what it forgets where it learned as much as the reference."""
    lines = [
        (f"{one.section}: against {one.found.reference.name}".removeprefix(": "), _line(compared))
        for one in found
        for compared in one.found.comparisons
    ]
    if not lines:
        return None
    return Table(
        f"At equal learning in {name}, in points: the most learning that both reach, read between "
        f"neighbouring settings, with {PERCENT} t intervals of paired differences",
        "Method",
        COLUMNS,
        by_section(lines),
        tuple(_notes(found)),
    )


def _line(found: EqualLearning) -> Line:
    cells = (
        TableCell(VERDICTS[found.verdict]),
        difference_cell(found.difference, SIGNS.get(found.verdict, "")),
        level_cell(found.level),
        level_cell(found.forgotten.mean if found.forgotten else None),
        level_cell(found.of_reference.mean if found.of_reference else None),
    )
    return Line(found.method, cells)


def level_cell(value: float | None) -> TableCell | None:
    """A number, where there is one."""
    return None if value is None else TableCell(number(value), order=value)


def difference_cell(found: Interval | None, verdict: str) -> TableCell | None:
    """A paired difference with its interval."""
    if found is None:
        return None
    return TableCell(signed(found.mean), interval_text(found), order=found.mean, verdict=verdict)


def _notes(found: Sequence[SectionFrontier]) -> Iterator[str]:
    """Which settings take no part, because a model that learned nothing forgets nothing."""
    dead = [_named(s) for one in found for curve in one.found.curves.values() for s in curve.dead]
    if dead:
        yield f"Learned nothing beyond the untrained model, and not compared: {', '.join(dead)}."


def _named(setting: SweepSetting) -> str:
    """A row's label says its method; a bare setting does not."""
    known = setting.name.startswith(setting.method)
    return setting.name if known else f"{setting.method} ({setting.name})"
