"""Rows that belong together: a method at several settings; methods at equal learning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from riselab.common.intervals import Estimate, estimate
from riselab.frontier.curves import RunPoint, SweepSetting
from riselab.frontier.equal_learning import EqualLearning, Frontier
from riselab.pages.tables import (
    Column,
    Line,
    Table,
    TableCell,
    by_section,
    difference_cell,
    number_cell,
)
from riselab.records.fields import Record
from riselab.report.rows import (
    ReportedExperiment,
    ResultRow,
    data_megabytes,
    kept_megabytes,
    seconds_per_session,
)
from riselab.report.tables import BESIDE, PERCENT, Metric


@dataclass(frozen=True, eq=False)
class Method:
    """One curve of a chart: a row, or the rows of one sweep in their order."""

    name: str
    rows: tuple[ResultRow, ...]

    def mean(self, value: Callable[[Record], float | None]) -> float | None:
        """Of ``value`` over all runs that have one."""
        found = [number for row in self.rows for number in row.by_seed(value).values()]
        return fmean(found) if found else None


def swept(row: ResultRow) -> SweepSetting:
    """What was swept, and with which values, as the row says."""
    return SweepSetting("", row.runs[0].row.swept, {})


def methods(experiment: ReportedExperiment) -> list[Method]:
    """In the order of their first rows; names are different from each other.

    Where a row stood in its file does not tell its place in the sweep: points may have been added.
    """
    groups: dict[tuple[str, str], list[ResultRow]] = defaultdict(list)
    for row in experiment.rows:
        groups[row.section, row.runs[0].row.method or row.label].append(row)
    return _told_apart([
        Method(name, tuple(sorted(rows, key=lambda row: swept(row).place)))
        for (_, name), rows in groups.items()
    ])  # fmt: skip


def _told_apart(found: Sequence[Method]) -> list[Method]:
    """Methods of one name get their sections, then numbers."""
    names: list[str] = []
    for method in found:
        same = sum(other.name == method.name for other in found) > 1
        section = method.rows[0].section
        name = f"{method.name} ({section})" if same and section else method.name
        taken = sum(name == other or other.startswith(f"{name} #") for other in names)
        names.append(f"{name} #{taken + 1}" if taken else name)
    return [Method(name, method.rows) for name, method in zip(names, found, strict=True)]


VERDICTS = {
    "less": "{verb} less",
    "more": "{verb} more",
    "open": "not clearly different",
    "one seed": "not judged: one seed",
    "no common range": "not compared: no learning in common",
    "learned nothing": "not compared: learned nothing",
}
SIGNS = {"less": "better", "more": "worse", "open": "open"}
COSTS = {
    Column("Seconds", better=-1, explanation="of training in a session, mean over all runs"):
        seconds_per_session,
    Column("MB kept", better=-1, explanation="of old tasks at the end, mean over all runs"):
        kept_megabytes,
    Column("MB of data", better=-1, explanation="that these replace"): data_megabytes,
}  # fmt: skip
CORRECTED = (
    "The verdicts are corrected for the number of methods (Holm), the intervals are not: one that "
    "just excludes zero may come with “not clearly different”."
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

    @property
    def heading(self) -> str:
        """Above its lines of a table."""
        return f"{self.section}: against {self.found.reference.name}".removeprefix(": ")


def frontiers(experiment: ReportedExperiment, methods: Sequence[Method]) -> list[SectionFrontier]:
    """One for each section whose baseline was run at several settings; elsewhere a comparison at
    equal learning has nothing to read between."""
    found = []
    for section in dict.fromkeys(method.rows[0].section for method in methods):
        here = [m for m in methods if m.rows[0].section == section]
        runs = [point for m in here for row in m.rows for point in row.points(m.name)]
        marked = [m for m in here if any(row.baseline for row in m.rows)]
        marked = [m for m in marked if m.name in {point.method for point in runs}]
        if any(len(m.rows) > 1 for m in marked) and len(marked) < len(here):
            frontier = Frontier(runs, [m.name for m in marked], experiment.measures)
            found.append(SectionFrontier(section, frontier))
    return found


def equal_table(
    name: str,
    found: Sequence[SectionFrontier],
    methods: Sequence[Method] = (),
    *,
    halfway: bool = False,
) -> Table | None:
    """One line for each method: what it forgets where it learned as much as the reference, and what
    it costs, as far as the records of ``methods`` say; or, ``halfway``, at less learning."""
    if not found:
        return None
    costs = {m.name: {column: m.mean(value) for column, value in COSTS.items()} for m in methods}
    shown = [column for column in COSTS if any(c[column] is not None for c in costs.values())]
    lines = [
        (one.heading, _equal_line(one.found, line, [costs[line.method][c] for c in shown]))
        for one in found
        for line in (one.found.halfway if halfway else one.found.comparisons)
    ]
    if not lines:
        return None
    measures = found[0].found.measures
    fgt = "Fgt" if measures.unit == "points" else "Drift"
    at = "in the middle of the" if halfway else "at the most"
    return Table(
        f"At equal learning in {name}, in {measures.unit}: read {at} learning that both reach; "
        f"{PERCENT} t intervals of differences paired by seed",
        "Method",
        (  # The verdict comes first: on a phone the last columns are off the screen.
            Column("In words", text=True),
            Column("Difference", explanation=f"method minus reference; below 0: it "
                                             f"{measures.verb} less"),
            Column("at New", explanation="where both were read, in percent"),
            Column(fgt, explanation="of the method there"),
            Column(f"{fgt} of reference", explanation="of the reference there"),
            *shown,
        ),
        by_section(lines),
        tuple(_notes(found)) if not halfway else (),
    )  # fmt: skip


def _equal_line(frontier: Frontier, found: EqualLearning, costs: Sequence[float | None]) -> Line:
    factor, digits = frontier.measures.factor, frontier.measures.digits
    difference, mine, theirs = (
        part and part.times(factor)
        for part in (found.difference, found.forgotten, found.of_reference)
    )
    words = VERDICTS[found.verdict].format(verb=frontier.measures.verb)
    cells = (
        TableCell(words, verdict=SIGNS.get(found.verdict, "")),
        difference_cell(difference, digits=digits),
        number_cell(found.level, 1),
        *(number_cell(part.mean if part else None, digits) for part in (mine, theirs)),
        *map(number_cell, costs),
    )
    return Line(found.method, cells)


def _notes(found: Sequence[SectionFrontier]) -> Iterator[str]:
    """How verdicts were made, and which settings take no part, because a model that learned nothing
    forgets nothing."""
    judged = [one.difference for part in found for one in part.found.comparisons]
    if sum(one is not None and one.half is not None for one in judged) > 1:
        yield CORRECTED
    dead = [_named(s) for one in found for curve in one.found.curves.values() for s in curve.dead]
    if dead:
        yield f"Learned nothing beyond the untrained model, and not compared: {', '.join(dead)}."


def _named(setting: SweepSetting) -> str:
    """A row's label says its method; a bare setting does not."""
    known = setting.name.startswith(setting.method)
    return setting.name if known else f"{setting.method} ({setting.name})"


LEVELS = ("agreement", "followed", "answer_tokens")
"""What stands beside the drift as it is, not as a change."""


def beside_table(
    experiment: ReportedExperiment, found: Sequence[SectionFrontier], methods: Sequence[Method]
) -> Table | None:
    """What else a chat model can do, read at the same learning as its drift; the references at the
    learning at which the first method was compared with them."""
    if not experiment.chat:
        return None
    runs = {
        (m.name, setting, run.seed): run
        for m in methods
        for row in m.rows
        for run in row.runs
        for setting in (row.label, run.row.swept)
    }
    shown = [
        metric for metric in BESIDE if any(metric.of(run) is not None for run in runs.values())
    ]
    lines = [
        (one.section, _beside_line(one.found, name, level, runs, shown))
        for one in found
        for name, level in _levels(one.found)
    ]
    if not shown or not lines:
        return None
    levels = " and ".join(metric.title for metric in shown if metric.key in LEVELS)
    said = f"As they are: {levels}. " if levels else ""
    return Table(
        f"What else changed in {experiment.name} at the same learning, since before training: with "
        f"{PERCENT} t intervals over seeds",
        "Method",
        (Column("at New", explanation="where it was read, in percent"),
         *(metric.column() for metric in shown)),
        by_section(lines),
        (f"{said}The others are changes; where an interval contains zero, no loss is seen beyond "
         "what seeds vary.",),
    )  # fmt: skip


def _levels(frontier: Frontier) -> Iterator[tuple[str, float]]:
    levels = {c.method: c.level for c in frontier.comparisons if c.level is not None}
    for level in list(levels.values())[:1]:
        yield frontier.reference.name, level
    yield from levels.items()


def _beside_line(
    frontier: Frontier,
    name: str,
    level: float,
    runs: dict[tuple[str, str, int], Record],
    shown: Sequence[Metric],
) -> Line:
    curve = frontier.curves.get(name, frontier.reference)

    def cell(metric: Metric) -> TableCell | None:
        def value(run: RunPoint) -> float:
            found = metric.of(runs[run.method, run.setting, run.seed])
            return float("nan") if found is None else found

        read = list(curve.at(level, value).values())
        found: Estimate | None = None if any(x != x for x in read) else estimate(read)
        if metric.key in LEVELS:
            return number_cell(found.mean if found else None, 1)
        return difference_cell(found, digits=metric.digits)

    return Line(name, (number_cell(level, 1), *map(cell, shown)))
