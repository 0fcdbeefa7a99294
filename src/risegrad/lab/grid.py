"""From an experiment to its cells: one run each, named by what it will do."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from risegrad.lab.experiment import LARGEST_GRID, Experiment, RowTable, Table
from risegrad.lab.layers import Layers, ReadConfig, check_use, unused_by
from risegrad.lab.records import Row
from risegrad.settings import as_plain, digest, override, place_value, unknown

LOCATIONS = frozenset({"data", "weights"})
"""Keys that say where something lies on this machine, not what it is."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    experiment: str
    row: Row
    order: int
    """the row's place in the table"""
    seed: int
    settings: Table
    """what the workload reads, with this machine's paths"""
    config: Table
    """what the record keeps and the id is made of: paths by their last part only"""
    id: str

    @property
    def folder(self) -> Path:
        """Below the output folder; by construction two plain names."""
        return Path(self.experiment) / f"{slug(self.row.label)}-s{self.seed}-{self.id[:12]}"

    @property
    def title(self) -> str:
        return f"{self.row.label} seed {self.seed}"


def expand(experiment: Experiment, read_config: ReadConfig) -> list[Cell]:
    """Every row, every combination that it varies, every seed; no run twice."""
    cells: dict[str, Cell] = {}
    rows = _rows(experiment)
    if len(rows) * len(experiment.seeds) > LARGEST_GRID:
        raise ValueError(f"{experiment.name}: more than {LARGEST_GRID} runs")
    unused = [unused_by(layers.merged(), read_config) for _, layers in rows]
    for order, (row, layers) in enumerate(rows):
        plain = layers.relieved_of(unused[order]).merged()
        for seed in experiment.seeds:
            cell = _cell(experiment.name, row, order, plain | {"seed": seed}, read_config)
            if cell.id in cells:
                raise ValueError(
                    f"{experiment.name}: {cells[cell.id].title!r} and {cell.title!r} are the same "
                    f"run: all their settings agree"
                )
            cells[cell.id] = cell
    check_use(experiment.name, unused)
    return list(cells.values())


def slug(text: str) -> str:
    """Text as a part of a file name: letters, digits and single dashes, at most 48."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:48].strip("-") or "run"


def public(plain: Any, key: str = "") -> Any:
    """The settings without this machine's folders."""
    if isinstance(plain, dict):
        return {name: public(value, name) for name, value in plain.items()}
    if isinstance(plain, list):
        return [public(value, key) for value in plain]
    is_path = key in LOCATIONS and isinstance(plain, str) and bool(PurePath(plain).name)
    return PurePath(plain).name if is_path else plain


def absolute(plain: Any, key: str = "") -> Any:
    """The settings with existing files by their full path: a worker may stand elsewhere."""
    if isinstance(plain, dict):
        return {name: absolute(value, name) for name, value in plain.items()}
    if isinstance(plain, list):
        return [absolute(value, key) for value in plain]
    if key in LOCATIONS and isinstance(plain, str) and plain:
        path = Path(plain).expanduser()
        return str(path.absolute()) if path.exists() else plain
    return plain


def _cell(experiment: str, row: Row, order: int, plain: Table, read_config: ReadConfig) -> Cell:
    try:
        settings = as_plain(read_config(plain))
    except ValueError as error:
        raise ValueError(f"{experiment}: row {row.label!r}: {error}") from error
    config = public(settings)
    return Cell(
        experiment, row, order, plain["seed"], absolute(settings), config, id=digest(config)
    )


def _rows(experiment: Experiment) -> list[tuple[Row, Layers]]:
    found = [pair for table in experiment.rows for pair in _variants(experiment, table)]
    for label, times in Counter(row.label for row, _ in found).items():
        if times > 1:
            raise ValueError(f"{experiment.name}: {times} rows are called {label!r}")
    return found


def _variants(experiment: Experiment, table: RowTable) -> Iterator[tuple[Row, Layers]]:
    """The row, once for every combination of what it varies."""
    shared = {"domain": experiment.domain} | experiment.given()
    for values in itertools.product(*table.vary.values()):
        own, varied = table.given(), dict(zip(table.vary, values, strict=True))
        overrides: Table = {}
        try:
            for place, value in varied.items():
                own = place_value(own, place, value)
            for assignment in experiment.overrides:
                overrides = override(overrides, assignment)
            layers = Layers(shared, own, overrides)
            label = _label(table.label, layers.merged(), varied)
        except ValueError as error:
            raise ValueError(f"{experiment.name}: row {table.label!r}: {error}") from error
        yield Row(label, table.section, table.paper, table.baseline, why=table.why), layers


PLACEHOLDER = re.compile(r"\{([a-z_]+(?:\.[a-z0-9_]+)+)\}")


def _label(label: str, plain: Table, varied: Table) -> str:
    """The label with ``{rule.q}`` filled in; what varies and is not in it stands behind it."""
    shown = set(PLACEHOLDER.findall(label))
    rest = [f"{p.split('.')[-1]}={_text(v)}" for p, v in varied.items() if p not in shown]
    filled = PLACEHOLDER.sub(lambda match: _text(_look(plain, match[1])), label)
    return f"{filled} ({', '.join(rest)})" if rest else filled


def _look(plain: Table, place: str) -> Any:
    value: Any = plain
    for part in place.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ValueError(f"the label's {{{place}}} is not set in the file")
        value = value[part]
    return value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def choose(cells: list[Cell], only: Sequence[str]) -> list[Cell]:
    """The cells of these rows or sections, or whose id begins so; all of them if none is given."""
    if not only:
        return cells
    for word in only:
        if not any(_matches(cell, word) for cell in cells):
            names = [name for cell in cells for name in (cell.row.section, cell.row.label) if name]
            raise ValueError(f"--only {word!r}: {unknown(word, dict.fromkeys(names))}")
    return [cell for cell in cells if any(_matches(cell, word) for word in only)]


def _matches(cell: Cell, word: str) -> bool:
    named = word in (cell.row.label, cell.row.section)
    return named or (len(word) >= 4 and cell.id.startswith(word))
