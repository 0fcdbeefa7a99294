"""Experiments from Python: the same runs as ``rise run``, in the same processes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from riselab import plugins as registered
from riselab.frames import LabResults
from riselab.records.fields import Record
from riselab.records.record import read_records
from riselab.running.folder import records_of
from riselab.running.plan import RunOptions, RunPlan, do_runs, plan_runs, plan_selected


def run(
    experiment: str | Path,
    *,
    seeds: Sequence[int] | None = None,
    only: str | Sequence[str] = (),
    out: str | Path = "out/runs",
    settings: Mapping[str, Any] | None = None,
    plugins: Sequence[str | Path] = (),
    track: str | Sequence[str] = (),
    workers: int | None = None,
    on_cpu: bool = False,
) -> LabResults:
    """Run what is left of an experiment, and return the results of the chosen runs.

    ``experiment`` is a name or a TOML file, ``settings`` replaces values in every row
    (``{"rule.q": 8}``), ``plugins`` are modules or files, ``track`` names trackers; all as in
    ``rise run``, which continues what this began, and the other way round. A run that fails does
    not stop the others: it is in ``failed``, and a warning says so. Where the file says ``select``,
    the runs on validation data are among the results, and those on test data that they chose.
    """
    registered.load(map(str, plugins))
    options = RunOptions(Path(out), workers=workers, track=_words(track), on_cpu=on_cpu)
    chosen = plan_runs(experiment, _overrides(seeds, settings), _words(only))
    records, failed = _done(chosen, options)
    if chosen.decides:
        more, failed_too = _done(plan_selected(chosen, options)[1], options)
        records, failed = records + more, failed | failed_too
    if failed:
        told = "; ".join(f"{title}: {reason}" for title, reason in failed.items())
        warnings.warn(f"{len(failed)} runs failed: {told}", RuntimeWarning, stacklevel=2)
    return LabResults(tuple(records), failed=failed)


def _done(chosen: RunPlan, options: RunOptions) -> tuple[list[Record], dict[str, str]]:
    """The records of the runs, and why others have none."""
    if not chosen.cells:
        return [], {}
    cells, tally = do_runs(chosen, options)
    failed = {cell.title: _last_line(reason) for cell, reason in tally.failed.values()}
    return records_of(cells, options.out), failed


def load(*places: str | Path) -> LabResults:
    """The results in folders and records; a warning names files that cannot be read."""
    for place in places:
        if not Path(place).exists():
            raise ValueError(f"places must be records or folders, there is no {str(place)!r}")
    records, problems = read_records(places)
    if problems:
        told = "; ".join(map(str, problems))
        warnings.warn(f"{len(problems)} files left out: {told}", RuntimeWarning, stacklevel=2)
    if not records:
        raise ValueError(f"no record could be read from {', '.join(map(str, places))}")
    return LabResults(tuple(records), tuple(problems))


def _words(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _overrides(seeds: Sequence[int] | None, settings: Mapping[str, Any] | None) -> list[str]:
    """As the command line gives them; JSON of plain values is TOML."""
    given = [f"{place}={json.dumps(value)}" for place, value in (settings or {}).items()]
    return given if seeds is None else [*given, f"seeds={json.dumps(list(seeds))}"]


def _last_line(reason: str) -> str:
    return (reason.strip().splitlines() or ["no reason is known; see log.txt"])[-1]
