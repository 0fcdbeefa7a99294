"""The same curves in two other readings: at equal forgetting, and each method at its best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from risegrad.common.intervals import Interval
from risegrad.lab.frontier.equal_forgetting import (
    BestFinal,
    EqualForgetting,
    best_final,
    compare_learning,
)
from risegrad.lab.frontier.frontier_curves import Curve
from risegrad.lab.report.experiment_tables import IDLE, PERCENT
from risegrad.lab.report.report_frontier import SectionFrontier, difference_cell, level_cell
from risegrad.pages.page_tables import Column, Line, Table, TableCell, by_section
from risegrad.pages.page_text import number

SIGNS = {"more": "better", "less": "worse", "open": "open"}
SAME, BEST = "At equal Fgt", "Each at its best"
COLUMNS = (
    Column("at Fgt", SAME, explanation="the forgetting at which both were read, in points"),
    Column("New", SAME, explanation="new-task accuracy of the method there"),
    Column("New of reference", SAME, explanation="new-task accuracy of the reference there"),
    Column("Difference in New", SAME, explanation="paired by seed; above 0: it learns more"),
    Column("Final average", BEST, explanation="highest mean over all tasks at the end"),
    Column("Setting", BEST, explanation="the one that has it", text=True),
    Column("Difference to reference", BEST, explanation="paired by seed; above 0: it ends higher"),
)


def other_ways_table(name: str, found: Sequence[SectionFrontier]) -> Table | None:
    """One line for each method, the references too: of these only the best end is said."""
    lines = [line for one in found for line in _section(one)]
    if not lines:
        return None
    return Table(
        f"The curves of {name} at equal forgetting, and each method at the setting with its "
        f"highest final average, in points, with {PERCENT} t intervals of paired differences",
        "Method",
        COLUMNS,
        by_section(lines),
        ("The best setting is the best on these very data, which flatters every method.",),
    )


def _section(one: SectionFrontier) -> Iterator[tuple[str, Line]]:
    reference = one.found.reference
    title = f"{one.section}: against {reference.name}".removeprefix(": ")
    for name, curve in one.found.curves.items():
        same = None if name in one.found.references else compare_learning(curve, reference)
        yield title, _line(curve, same, best_final(curve, reference))


def _line(curve: Curve, same: EqualForgetting | None, best: BestFinal | None) -> Line:
    cells = (*_equal(same), *_best(curve, best))
    return Line(curve.name, cells, "" if curve.front else IDLE)


def _equal(found: EqualForgetting | None) -> tuple[TableCell | None, ...]:
    if found is None:
        return (None,) * 4
    verdict = SIGNS.get(found.verdict, "")
    return (
        level_cell(found.level),
        level_cell(found.learned.mean if found.learned else None),
        level_cell(found.of_reference.mean if found.of_reference else None),
        difference_cell(found.difference, verdict),
    )


def _best(curve: Curve, found: BestFinal | None) -> tuple[TableCell | None, ...]:
    if found is None:
        return (None,) * 3
    end = TableCell(number(found.final.mean), order=found.final.mean)
    setting = TableCell(_setting(curve, found.setting))
    return end, setting, difference_cell(found.difference, _verdict(found.difference))


def _setting(curve: Curve, label: str) -> str:
    """``lr=0.1`` of ``FO (lr=0.1)``: the method stands in the first column."""
    return label.removeprefix(curve.name).strip(" ()") or label


def _verdict(found: Interval | None) -> str:
    if found is None or found.low is None:
        return ""
    if not found.excludes_zero:
        return "open"
    return "better" if found.mean > 0 else "worse"
