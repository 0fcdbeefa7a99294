"""Where the numbers come from: runs, versions, notes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from risegrad.lab.records.record import Record
from risegrad.lab.report.result_rows import ReportedExperiment
from risegrad.pages.page_tables import Column, Line, Table, TableCell, by_section
from risegrad.pages.page_text import number, plural

MOST_VALUES = 6
"""So many different values of one setting are named; more are counted."""


def summary_line(experiment: ReportedExperiment) -> str:
    """Rows, runs, seeds, tasks and versions of an experiment in one line."""
    runs = experiment.runs()
    seeds = sorted({run.seed for run in runs})
    tasks = sorted({len(run.result.tasks) for run in runs})
    parts = [
        plural(len(experiment.rows), "row"),
        plural(len(runs), "run"),
        f"seeds {_listed(map(str, seeds))}",
        f"{_listed(map(str, tasks))} tasks",
        *_settings(runs),
        *_versions(runs),
    ]
    return " · ".join(parts)


def _settings(runs: Sequence[Record]) -> list[str]:
    found = {
        key: {_scalar(run.setting(key, "name")) for run in runs} for key in ("stream", "model")
    }
    return [f"{key} {_listed(values - {''})}" for key, values in found.items() if values - {""}]


def _versions(runs: Sequence[Record]) -> list[str]:
    found: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for key, value in _versions_of(run.run.environment, run.run.git):
            found[key].add(value)
    return [f"{key} {_listed(values)}" for key, values in found.items()]


def _versions_of(
    environment: Mapping[str, Any], git: Mapping[str, Any]
) -> Iterable[tuple[str, str]]:
    packages = environment.get("packages")
    torch = packages.get("torch") if isinstance(packages, Mapping) else None
    for key, found in (("python", environment.get("python")), ("torch", torch)):
        if value := _scalar(found):
            yield key, value
    if commit := _scalar(git.get("commit")):
        yield "commit", commit[:12] + (" with local changes" if git.get("dirty") is True else "")


def _scalar(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) and value != "" else ""


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
    total = run.run.total_seconds
    commit = dict(_versions_of({}, run.run.git)).get("commit")
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
