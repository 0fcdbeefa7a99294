"""From an experiment to its cells: one run each, named by what it will do."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from risegrad.common.seal import digest
from riselab.common.inputs import Inputs, Reading, describe, essential, readings_of
from riselab.common.settings import (
    Unused,
    as_plain,
    essence,
    flat,
    merge,
    override,
    place_value,
    unknown,
    without,
)
from riselab.experiments.file import (
    LARGEST_GRID,
    PART,
    TOGETHER,
    Experiment,
    RowTable,
    Table,
    absolute,
    points,
    public,
)
from riselab.pages.text import visible
from riselab.records.fields import TableRow

ReadConfig = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Layers:
    """The file's own tables, the row's with what it varies, and the command line's."""

    shared: Table
    own: Table
    overrides: Table

    def merged(self) -> Table:
        """All layers as one table; the row's own beat the shared, and overrides beat both."""
        return merge(merge(self.shared, self.own), self.overrides)

    def relieved_of(self, places: Iterable[str]) -> "Layers":
        """Without what was said to all rows at these places; what the row itself says stays."""
        gone = set(places)
        shared, overrides = without(self.shared, gone), without(self.overrides, gone)
        return replace(self, shared=shared, overrides=overrides)


def check_use(experiment: str, unused: Sequence[Mapping[str, str]]) -> None:
    """What is said to all rows must be of use to one; ``unused`` has an entry for each row."""
    for place, reason in unused[0].items():
        if all(place in reasons for reasons in unused):
            raise ValueError(f"{experiment}: no row uses {place}, which {reason}")


Look = Callable[[Reading], dict[str, Any]]

SHORT = 12
"""Characters of an id in the name of a folder."""

OF_SWEEPS = ("method", "swept", "decides", "chosen_by")
"""What a record's row has only where it belongs to a sweep."""

Chosen = Callable[[TableRow], bool]
"""Whether this point of a selected sweep is to run on test data."""


@dataclass(frozen=True)
class RunCell:
    """One run."""

    experiment: str
    row: TableRow
    order: int
    """the row's place in the table"""
    seed: int
    settings: Table
    """what the workload reads, with this machine's paths"""
    config: Table
    """what the record keeps of it: paths by their last part only"""
    inputs: Inputs
    """what is there now"""
    identity: Table
    """what the id is made of: the settings that are no defaults, and the content of the inputs"""
    basis: Table
    """all settings that can change a result, by dotted names: two runs with the same id differ in
    one of them only if a default was changed in between"""
    id: str
    run: Any = field(compare=False, repr=False)
    """the settings as the workload read them"""
    kept: str = ""
    """the name of the folder that the run has already, perhaps from when the row had another"""

    @property
    def folder(self) -> Path:
        """Below the output folder; by construction two plain names."""
        name = self.kept or f"{slug(self.row.label)}-s{self.seed}-{self.id[:SHORT]}"
        return Path(self.experiment) / name

    def row_plain(self) -> Table:
        """The row as a record keeps it; of a sweep it speaks only where there is one."""
        plain = {**as_plain(self.row), "order": self.order}
        return without(plain, [place for place in OF_SWEEPS if not plain[place]])

    @property
    def title(self) -> str:
        """For messages, which go to a terminal."""
        return f"{visible(self.row.label)} seed {self.seed}"


def expand(
    experiment: Experiment, read_config: ReadConfig, chosen: Chosen = lambda row: False
) -> list[RunCell]:
    """Every row, every combination that it varies, every seed; no run twice.

    Where the experiment selects, these are the runs that decide, then those that are ``chosen``.
    """
    cells: dict[str, RunCell] = {}
    rows, look = _rows(experiment, chosen), cache(describe)
    if len(rows) * len(experiment.seeds) > LARGEST_GRID:
        raise ValueError(f"{experiment.name}: more than {LARGEST_GRID} runs")
    unused: list[Mapping[str, str]] = []
    for order, (row, layers) in enumerate(rows):
        unused.append({})
        for seed in (row.decides and experiment.select_seeds) or experiment.seeds:
            try:
                try:
                    settings = read_config(layers.merged() | {"seed": seed})
                except Unused as error:  # said to all rows, and of no use to this one
                    unused[-1], layers = error.reasons, layers.relieved_of(error.reasons)
                    settings = read_config(layers.merged() | {"seed": seed})
                cell = _cell(experiment.name, row, order, seed, settings, read_config, look)
            except ValueError as error:
                raise ValueError(f"{experiment.name}: row {row.label!r}: {error}") from error
            if cell.id in cells:
                raise ValueError(
                    f"{experiment.name}: {cells[cell.id].title!r} and {cell.title!r} are the same "
                    f"run: all settings that can change a result agree"
                )
            cells[cell.id] = cell
    check_use(experiment.name, unused)
    return list(cells.values())


def slug(text: str) -> str:
    """Text as a part of a file name: letters, digits and single dashes, at most 48."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:48].strip("-") or "run"


def _cell(
    experiment: str, row: TableRow, order: int, seed: int, settings: Any, read_config: ReadConfig,
    look: Look,
) -> RunCell:  # fmt: skip
    readings = readings_of(settings)
    inputs = {place: look(reading) for place, reading in readings.items()}
    full = as_plain(settings)
    there = absolute(full, readings)
    own = public(without(essence(settings), readings), readings)
    basis = public(without(essence(settings, complete=True), readings), readings)
    identity = {"settings": own, "inputs": essential(inputs)}
    return RunCell(
        experiment, row, order, seed, there, public(full, readings), inputs, identity, flat(basis),
        digest(identity), settings if there == full else read_config(there),
    )  # fmt: skip


def _rows(experiment: Experiment, chosen: Chosen) -> list[tuple[TableRow, Layers]]:
    deciding, found = [], []
    for table in experiment.rows:
        variants, select = list(_variants(experiment, table)), experiment.select_of(table)
        deciding += list(_deciding(variants, select))
        found += list(_reported(variants, select, chosen))
    found = [*deciding, *found]
    for label, times in Counter(row.label for row, _ in found).items():
        if times > 1:
            raise ValueError(f"{experiment.name}: {times} rows are called {label!r}")
    return found


def _variants(experiment: Experiment, table: RowTable) -> Iterator[tuple[TableRow, Layers]]:
    """The row, once for every combination of what it varies and every point of its sweep."""
    for values in itertools.product(*table.vary.values()):
        varied = dict(zip(table.vary, values, strict=True))
        for named, places in points(experiment.sweep_of(table)):
            try:
                layers = _layers(experiment, table, varied | places)
                method = _label(table.label, layers.merged(), varied, named)
                label = _label(table.label, layers.merged(), varied | named)
            except ValueError as error:
                raise ValueError(f"{experiment.name}: row {table.label!r}: {error}") from error
            row = TableRow(label, table.section, table.paper, table.baseline, why=table.why)
            swept = ", ".join(_settings(named))
            yield replace(row, method=method, swept=swept) if named else row, layers


def _deciding(
    rows: Sequence[tuple[TableRow, Layers]], select: str
) -> Iterator[tuple[TableRow, Layers]]:
    """Every point of a sweep, on the data that choose."""
    for row, layers in rows:
        if select and row.method:
            own = place_value(layers.own, "loop.score_on", PART)
            label = f"{row.label}, {PART}"
            yield replace(row, label=label, decides=select), replace(layers, own=own)


def _reported(
    rows: Sequence[tuple[TableRow, Layers]], select: str, chosen: Chosen
) -> Iterator[tuple[TableRow, Layers]]:
    """What is chosen of a sweep, and every row of which nothing has to be chosen."""
    for row, layers in rows:
        if not select or not row.method:
            yield row, layers
        elif chosen(row):
            yield replace(row, chosen_by=select), layers


def _layers(experiment: Experiment, table: RowTable, places: Table) -> Layers:
    own, overrides = table.given(), Table()
    for place, value in places.items():
        own = place_value(own, place, value)
    for assignment in experiment.overrides:
        overrides = override(overrides, assignment)
    return Layers({"domain": experiment.domain} | experiment.given(), own, overrides)


PLACEHOLDER = re.compile(r"\{([a-z_]+(?:\.[a-z0-9_]+)+)\}")


def _label(label: str, plain: Table, varied: Table, swept: Table | None = None) -> str:
    """The label with ``{rule.q}`` filled in; what varies and is not in it is added to it.

    What is ``swept`` differs within the method that is named, so it cannot stand in a label.
    """
    shown = PLACEHOLDER.findall(label)
    for key in swept or {}:
        if inside := [place for place in TOGETHER.get(key, (key,)) if place in shown]:
            raise ValueError(
                f"leave {{{inside[0]}}} out of the label: swept values are added to it"
            )
    rest = list(_settings({place: v for place, v in varied.items() if place not in shown}))
    filled = PLACEHOLDER.sub(lambda match: _text(_look(plain, match[1])), label)
    return f"{filled} ({', '.join(rest)})" if rest else filled


def _settings(varied: Table) -> Iterator[str]:
    """Short: ``lr=0.001``."""
    return (f"{place.split('.')[-1]}={_text(value)}" for place, value in varied.items())


def _look(plain: Table, place: str) -> Any:
    value: Any = plain
    for part in place.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"the label's {{{place}}} is not set in the file")
        value = value[part]
    return value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


ALL = "all"
"""What ``--only`` says for every row of a file that runs some of them by default."""


def choose(cells: list[RunCell], only: Sequence[str], default: Sequence[str] = ()) -> list[RunCell]:
    """The cells of these rows or sections, or whose id begins so; where none is given those of the
    file's ``default``, or all."""
    only = only or default
    if not only or list(only) == [ALL]:
        return cells
    for word in only:
        if not word or not any(_matches(cell, word) for cell in cells):
            names = [n for c in cells for n in (c.row.section, c.row.method, c.row.label) if n]
            raise ValueError(f"--only {word!r}: {unknown(word, dict.fromkeys(names))}")
    return [cell for cell in cells if any(_matches(cell, word) for word in only)]


def _matches(cell: RunCell, word: str) -> bool:
    named = word in (cell.row.label, cell.row.section, cell.row.method)
    return named or (len(word) >= 4 and cell.id.startswith(word))
