"""Rows that belong together: a method at several values of its knobs, or of q alone."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from risegrad.lab.report.result_rows import ReportedExperiment, ResultRow

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
