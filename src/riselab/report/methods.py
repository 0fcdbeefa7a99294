"""Rows that belong together: a method at several values of its knobs; methods at equal learning."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean
from typing import Any

from riselab.frontier.curves import EqualLearning, Frontier, SweepSetting
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
from riselab.report.rows import ReportedExperiment, ResultRow, kept_megabytes, seconds_per_session
from riselab.report.tables import PERCENT

KNOBS = (("adapter", "lr"), ("head", "lr"), ("rule", "q"), ("rule", "damping"))
"""The settings that a sweep of one method changes; everything else makes another method."""


@dataclass(frozen=True, eq=False)
class Method:
    """One curve of a chart: its rows in the order of their knobs."""

    name: str
    rows: tuple[ResultRow, ...]

    def setting(self, row: ResultRow) -> str:
        """The knobs that differ within the method, short: "lr 0.001, q 4"."""
        if row.runs[0].row.method:
            return row.runs[0].row.swept.replace("=", " ")
        table = {id(r): _knobs(r) for r in self.rows}
        differing = [i for i in range(len(KNOBS)) if len({t[i] for t in table.values()}) > 1]
        shown = (f"{KNOBS[i][-1]} {table[id(row)][i]:g}" for i in differing)
        return ", ".join(dict.fromkeys(shown))

    def mean(self, value: Callable[[Record], float | None]) -> float | None:
        """Of ``value`` over all runs that have one."""
        found = [number for row in self.rows for number in row.by_seed(value).values()]
        return fmean(found) if found else None


def methods(experiment: ReportedExperiment) -> list[Method]:
    """In the order of their first rows; names are different from each other.

    What a file sweeps says itself which rows are one method; of other rows the settings tell. Where
    a row stood in the file does not tell the order: points may have been added to a sweep since.
    """
    groups: dict[str, list[ResultRow]] = defaultdict(list)
    named: dict[tuple[str, str], list[ResultRow]] = defaultdict(list)
    for row in experiment.rows:
        if method := row.runs[0].row.method:
            named[row.section, method].append(row)
        else:
            groups[_kind(row)].append(row)
    found = [Method(name, tuple(sorted(rows, key=_knobs))) for (_, name), rows in named.items()]
    for rows in groups.values():
        ordered = sorted(rows, key=_knobs)
        swept = len({_knobs(row) for row in rows}) == len(rows) > 1
        found += [_method(ordered)] if swept else [Method(r.label, (r,)) for r in rows]
    return _told_apart(sorted(found, key=lambda m: experiment.rows.index(m.rows[0])))


def _kind(row: ResultRow) -> str:
    """All settings but the knobs and the seed."""
    config = {key: value for key, value in row.runs[0].config.items() if key != "seed"}
    for table, key in KNOBS:
        if isinstance(config.get(table), dict):
            config[table] = {k: v for k, v in config[table].items() if k != key}
    return json.dumps([row.section, config], sort_keys=True)


def _knobs(row: ResultRow) -> tuple[float, ...]:
    return tuple(_number(row.runs[0].setting(*knob)) for knob in KNOBS)


def _number(value: Any) -> float:
    given = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if given and abs(value) < 2**53 else 0.0


def _method(rows: Sequence[ResultRow]) -> Method:
    """Named by what the labels have in common, without the knob: "FO, rate 0.1" is "FO"."""
    letters = takewhile(
        lambda same: len(set(same)) == 1, zip(*(r.label for r in rows), strict=False)
    )
    common = "".join(same[0] for same in letters)
    common = re.sub(r"[0-9.eE+-]*$", "", common)
    name = re.sub(r"(^|[\s,(]+)([\w.]+=|rate)\s*$", "", common).strip(" ,(")
    return Method(name or str(rows[0].runs[0].setting("rule", "name")), tuple(rows))


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


def sweeps(experiment: ReportedExperiment) -> Iterator[tuple[str, list[ResultRow]]]:
    """Rows of the same rule and host that differ in q, in the order of q."""
    groups: dict[tuple[str, str], list[ResultRow]] = defaultdict(list)
    for row in experiment.rows:
        run = row.runs[0]
        if query_count(row) is not None:
            key = str(run.setting("rule", "name")), str(run.setting("host", "name"))
            groups[key].append(row)
    for (rule, host), rows in groups.items():
        if len({query_count(row) for row in rows}) > 1:
            name = f"{rule} on {host}" if host != "None" else rule
            yield f"{name} in {experiment.name}", sorted(rows, key=lambda r: query_count(r) or 0)


def query_count(row: ResultRow) -> int | None:
    """The row's q; None if it has none that can be drawn."""
    q = row.runs[0].setting("rule", "q")
    return q if isinstance(q, int) and not isinstance(q, bool) and 0 < q < 2**53 else None


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
COSTS = (
    Column("Seconds", better=-1, explanation="of training in a session, mean over all runs"),
    Column("MB kept", better=-1, explanation="of old tasks at the end, mean over all runs"),
)
CORRECTED = (
    "The words are corrected for the number of methods compared (Holm), the intervals are not: one "
    "that just leaves out zero may stand beside “not clearly different”."
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


def equal_table(
    name: str, found: Sequence[SectionFrontier], methods: Sequence[Method] = ()
) -> Table | None:
    """One line for each method: what it forgets where it learned as much as the reference, and what
    it costs, as far as the records of ``methods`` say."""
    costs = {method.name: (method.mean(seconds_per_session), method.mean(kept_megabytes))
             for method in methods}  # fmt: skip
    shown = [i for i in range(len(COSTS)) if any(cost[i] is not None for cost in costs.values())]
    lines = [
        (f"{one.section}: against {one.found.reference.name}".removeprefix(": "),
         _equal_line(compared, [costs[compared.method][i] for i in shown]))
        for one in found
        for compared in one.found.comparisons
    ]  # fmt: skip
    if not lines:
        return None
    return Table(
        f"At equal learning in {name}, in points: the most learning that both reach, read between "
        f"neighbouring settings, with {PERCENT} t intervals of paired differences",
        "Method",
        (*COLUMNS, *(COSTS[i] for i in shown)),
        by_section(lines),
        tuple(_notes(found)),
    )


def _equal_line(found: EqualLearning, costs: Sequence[float | None]) -> Line:
    cells = (
        TableCell(VERDICTS[found.verdict], verdict=SIGNS.get(found.verdict, "")),
        difference_cell(found.difference),
        number_cell(found.level),
        number_cell(found.forgotten.mean if found.forgotten else None),
        number_cell(found.of_reference.mean if found.of_reference else None),
        *(number_cell(cost) for cost in costs),
    )
    return Line(found.method, cells)


def _notes(found: Sequence[SectionFrontier]) -> Iterator[str]:
    """How verdicts were made, and which settings take no part, because a model that learned nothing
    forgets nothing."""
    judged = [one.difference for part in found for one in part.found.comparisons]
    if sum(one is not None and one.low is not None for one in judged) > 1:
        yield CORRECTED
    dead = [_named(s) for one in found for curve in one.found.curves.values() for s in curve.dead]
    if dead:
        yield f"Learned nothing beyond the untrained model, and not compared: {', '.join(dead)}."


def _named(setting: SweepSetting) -> str:
    """A row's label says its method; a bare setting does not."""
    known = setting.name.startswith(setting.method)
    return setting.name if known else f"{setting.method} ({setting.name})"
