"""Experiments from Python: the same runs as ``rise run``, and their records as data frames."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from risegrad.common.checks import check_choice
from risegrad.common.imports import need
from riselab import plugins as registered
from riselab.common.settings import flat
from riselab.frontier.equal_learning import Frontier
from riselab.pages.tables import Table, in_html
from riselab.pages.text import visible
from riselab.records.fields import Record
from riselab.records.record import RecordError, read_records
from riselab.report.builder import build, write_report
from riselab.report.methods import methods
from riselab.report.rows import ReportedExperiment, gather
from riselab.report.tables import results
from riselab.running.folder import records_of
from riselab.running.plan import RunOptions, RunPlan, do_runs, plan_runs, plan_selected

if TYPE_CHECKING:
    from pandas import DataFrame

By = Literal["run", "task", "session"]
Row = dict[str, Any]


@dataclass(frozen=True, repr=False)
class LabResults:
    """What ``lab.run`` and ``lab.load`` return. In a notebook it shows itself as a table."""

    records: tuple[Record, ...]
    problems: tuple[RecordError, ...] = ()
    """Files that could not be read."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Runs that failed, by row and seed, with the last line of the reason."""

    def frame(self, by: By = "run") -> DataFrame:
        """A data frame (pandas) with one row per ``run``, per ``task`` or per ``session``.

        By run: the metrics, the seconds, and every setting in which the runs differ. By task: its
        accuracy when it was new, at its best and at the end. By session: the accuracy on each task
        after each session.
        """
        check_choice("by", by, ("run", "task", "session"))
        pandas = need("pandas", "lab", "results.frame()")
        rows = {"run": self._runs, "task": self._tasks, "session": self._sessions}[by]()
        found: DataFrame = pandas.DataFrame(list(rows))
        return found

    def frontier(
        self, reference: str | Sequence[str] | None = None, experiment: str | None = None
    ) -> Frontier:
        """Forgetting against learning, beside the ``reference`` methods; by default the baselines.

        Of several experiments, ``experiment`` must say which.
        """
        chosen = self._experiment(experiment)
        found = methods(chosen)
        runs = [point for m in found for row in m.rows for point in row.points(m.name)]
        if not runs:
            raise ValueError("no run has both measures of a frontier, plasticity and forgetting")
        if reference is None:
            reference = [m.name for m in found if any(row.baseline for row in m.rows)]
        if not reference:
            names = ", ".join(m.name for m in found)
            raise ValueError(f"pass reference, because no row is a baseline; the rows are {names}")
        reference = [reference] if isinstance(reference, str) else reference
        return Frontier(runs, reference, chosen.measures)

    def report(
        self,
        path: Path | str = "report.html",
        figures: Path | str | None = None,
        baseline: str | None = None,
    ) -> Path:
        """Write the page that ``rise report`` writes, with its tables beside it; its path."""
        page = build(self.records, self.problems, baseline)
        written = write_report(page, Path(path), None if figures is None else Path(figures))
        return written[0]

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        shown = ([visible(table.caption), *table.plain()] for table in self._tables())
        return "\n".join([*chain.from_iterable(shown), *self._remarks()])

    def _repr_html_(self) -> str:
        shown = "".join(table.notebook(table.caption) for table in self._tables())
        return shown + "".join(f"<p>{in_html(remark)}</p>" for remark in self._remarks())

    def _tables(self) -> Iterator[Table]:
        """The results of each experiment, as ``rise report`` shows them."""
        return (results(experiment) for experiment in gather(self.records)[0])

    def _remarks(self) -> Iterator[str]:
        for title, reason in self.failed.items():
            yield visible(f"{title} failed: {reason}")
        for problem in self.problems:
            yield visible(f"left out {problem}")

    def _experiment(self, name: str | None) -> ReportedExperiment:
        known = {one.name: one for one in gather(self.records)[0]}
        if name is None and len(known) != 1:
            raise ValueError(f"experiment must be one of {', '.join(known)}; got none")
        if name is not None:
            check_choice("experiment", name, known)
        return known[name] if name is not None else next(iter(known.values()))

    def _runs(self) -> Iterator[Row]:
        configs = [flat(one.config) for one in self.records]
        varied = _differing(configs)
        for one, config in zip(self.records, configs, strict=True):
            settings = {place: config.get(place) for place in varied}
            seconds = {"seconds": one.run.seconds.total}
            yield _head(one) | dict(one.result.metrics) | seconds | settings

    def _tasks(self) -> Iterator[Row]:
        for one in self.records:
            score = one.result.scores[one.result.main_score]
            for i, task in enumerate(one.result.tasks):
                after = [score.at(t, i) for t in range(i, len(one.result.tasks))]
                known = [value for value in after if value is not None]
                numbers = {"new": after[0], "best": max(known, default=None), "end": after[-1]}
                yield _head(one) | {"task": i, "name": task.name} | numbers

    def _sessions(self) -> Iterator[Row]:
        for one in self.records:
            for name, score in one.result.scores.items():
                for t in range(len(one.result.tasks)):
                    for i, task in enumerate(one.result.tasks):
                        if (value := score.at(t, i)) is not None:
                            place = {"score": name, "after": t, "task": i, "name": task.name}
                            yield _head(one) | place | {"percent": value}


def _head(one: Record) -> Row:
    return {
        "experiment": one.experiment,
        "label": one.row.label,
        "method": one.row.method or one.row.label,
        "seed": one.seed,
        "id": one.id,
    }


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The places where not all agree, without the seed, which has its own column."""
    places: Iterable[str] = dict.fromkeys(place for config in configs for place in config)
    return [
        place
        for place in places
        if place != "seed" and len({repr(config.get(place)) for config in configs}) > 1
    ]


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
