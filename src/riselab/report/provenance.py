"""Where the numbers come from: runs, versions, notes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from riselab.pages.tables import Column, Line, Table, TableCell, by_section
from riselab.pages.text import number, plural
from riselab.records.fields import Record
from riselab.report.rows import ReportedExperiment

MOST_VALUES = 6
"""So many different values of one setting are named; more are counted."""


def summary_line(experiment: ReportedExperiment) -> str:
    """Rows, runs, seeds, tasks and versions of an experiment in one line."""
    runs = experiment.runs()
    found: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for key, value in _facts(run):
            found[key].add(value)
    parts = [
        plural(len(experiment.rows), "row"),
        plural(len(runs), "run"),
        f"seeds {_listed(str(run.seed) for run in runs)}",
        f"tasks {_listed(str(len(run.result.tasks)) for run in runs)}",
        *(f"{key} {_listed(values)}" for key, values in found.items()),
    ]
    return " · ".join(parts)


def _facts(run: Record) -> Iterator[tuple[str, str]]:
    packages = run.run.environment.get("packages")
    given = {
        "stream": run.setting("stream", "name"),
        "model": run.setting("model", "name"),
        "python": run.run.environment.get("python"),
        "torch": packages.get("torch") if isinstance(packages, Mapping) else None,
        "commit": _commit(run),
    }
    for key, value in given.items():
        if isinstance(value, str | int | float) and value != "":
            yield key, str(value)


def _commit(run: Record) -> str:
    commit: Any = run.run.git.get("commit")
    changed = " with local changes" if run.run.git.get("dirty") is True else ""
    return commit[:12] + changed if isinstance(commit, str) and commit else ""


def _listed(values: Iterable[str]) -> str:
    given = sorted(set(values), key=lambda text: (len(text), text))
    if len(given) > MOST_VALUES:
        return f"{given[0]} to {given[-1]} ({len(given)} different)"
    return ", ".join(given)


def run_table(experiments: Sequence[ReportedExperiment]) -> Table:
    """The table of all runs."""
    lines = (
        (experiment.name, _run_line(row.label, run))
        for experiment in experiments
        for row in experiment.rows
        for run in row.runs
    )
    columns = ("Seed", "Finished", "Total s", "Resumed", "Commit", "Configuration")
    return Table("All runs of this report", "Row", tuple(map(Column, columns)), by_section(lines))


def _run_line(label: str, run: Record) -> Line:
    total, commit = run.run.seconds.total, _commit(run)
    return Line(
        label,
        (
            TableCell(str(run.seed), order=run.seed),
            TableCell(run.run.finished) if run.run.finished else None,
            None if total is None else TableCell(number(total, 1), order=total),
            TableCell(str(run.run.resumed), order=run.run.resumed),
            TableCell(commit) if commit else None,
            TableCell(run.id[:12]),
        ),
    )


def notes(experiments: Sequence[ReportedExperiment]) -> list[str]:
    """What the runs themselves had to say; the same note of several runs once."""
    found: dict[str, list[str]] = defaultdict(list)
    for experiment in experiments:
        for row in experiment.rows:
            for run in row.runs:
                for note in filter(None, [*run.result.notes, run.row.why]):
                    found[note].append(f"{experiment.name}, {row.label}, seed {run.seed}")
    return [f"{_where(places)}: {note}" for note, places in found.items()]


def _where(places: Sequence[str]) -> str:
    more = f" and {plural(len(places) - 1, 'other run')}" if len(places) > 1 else ""
    return places[0] + more
