"""Experiment files: TOML, read strictly; ``docs/lab.md`` explains the format."""

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from risegrad.common.settings import override, read, unknown
from risegrad.foresight.foresight_settings import read_sections
from risegrad.lab.experiments.experiment_library import locate
from risegrad.lab.experiments.selection import check_select
from risegrad.lab.experiments.sweeps import check_sweep, check_values
from risegrad.lab.records.record import PaperCell
from risegrad.lab.records.record_reader import short
from risegrad.pages.text import visible

Table = dict[str, Any]

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,80}")
LARGEST_GRID = 100_000
SMALLEST_SEED, LARGEST_SEED = -(2**63), 2**64 - 1
"""What torch takes as a seed."""


@dataclass(frozen=True, kw_only=True)
class Sections:
    """What describes a run; a table each, checked by the workload and not here."""

    stream: Table | None = None
    model: Table | None = None
    host: Table | None = None
    rule: Table | None = None
    head: Table | None = None
    adapter: Table | None = None
    memory: Table | None = None
    loop: Table | None = None
    additions: Any = None
    abilities: Table | None = None

    def given(self) -> Table:
        """The sections that the file has."""
        found = {name: getattr(self, name) for name in SECTIONS}
        return {name: value for name, value in found.items() if value is not None}


SECTIONS = tuple(f.name for f in fields(Sections))


@dataclass(frozen=True, kw_only=True)
class RowTable(Sections):
    """One ``[[rows]]``: what differs from the defaults, and its place in the table."""

    label: str
    section: str = ""
    paper: PaperCell | None = None
    baseline: bool = False
    why: str = ""
    """The reason, where it trains otherwise than the rows that it is compared with."""
    vary: Table = field(default_factory=dict)
    sweep: Table | None = None
    """In place of the file's; an empty one for a row that is not swept."""

    def __post_init__(self) -> None:
        if not self.label.strip():
            raise ValueError("label must not be blank")
        check_values("vary", self.vary, SECTIONS)
        check_sweep(self.sweep or {}, SECTIONS)

    @property
    def variants(self) -> int:
        """How many rows it becomes: one for each combination of varied values."""
        return math.prod(len(values) for values in self.vary.values())


@dataclass(frozen=True, kw_only=True)
class File(Sections):
    """A whole file; its own sections are the defaults of every row."""

    name: str
    title: str = ""
    question: str = ""
    """What it asks, in a sentence that ends with a question mark."""
    description: str = ""
    domain: str
    gpu: bool = False
    """Whether its runs are so large that they need a GPU: without one they are refused unless
    ``--on-cpu`` is given."""
    seeds: tuple[int, ...] = (0,)
    sweep: Table = field(default_factory=dict)
    """Of every row that has none of its own."""
    select: str = ""
    """By what one point of each sweep is chosen for the report; without it all are reported."""
    diagnosis: Table = field(default_factory=dict)
    """For ``rise diagnose`` and ``rise local``; no run depends on it."""
    validation: Table = field(default_factory=dict)
    """The same."""
    rows: tuple[RowTable, ...]

    def __post_init__(self) -> None:
        check_sweep(self.sweep, SECTIONS)
        read_sections({"diagnosis": self.diagnosis, "validation": self.validation})
        # The name becomes a folder: what it may be is decided here and nowhere else.
        if not NAME.fullmatch(self.name) or ".." in self.name:
            raise ValueError(
                f"name must be of a-z, 0-9, '.', '_' and '-', begin with a letter or digit, have "
                f"at most 81 characters and no '..', got {self.name!r}"
            )
        if not self.rows:
            raise ValueError("rows: there must be at least one")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different integers, got {list(self.seeds)}")
        for seed in self.seeds:
            if not SMALLEST_SEED <= seed <= LARGEST_SEED:
                raise ValueError(f"seeds must have at most 64 bits, got {short(seed)}")
        self._check_question()
        self._check_select()
        self._check_baselines()

    def _check_question(self) -> None:
        if self.question and ("\n" in self.question or not self.question.endswith("?")):
            raise ValueError(
                f"question must be one line that ends with '?', got {short(self.question)}"
            )

    def _check_select(self) -> None:
        if not self.select:
            return
        check_select(self.select)
        if not any(self.sweep_of(row) for row in self.rows):
            raise ValueError("select: there must be a row with a sweep to select from")

    def _check_baselines(self) -> None:
        """Differences refer to the one baseline of a section; of two, neither would be it.

        Swept ones are read at equal learning, where several together are one reference. Where one
        point is selected, a swept row is one row like any other.
        """
        for section in {row.section for row in self.rows}:
            rows = [row for row in self.rows if row.section == section and row.baseline]
            swept = 0 if self.select else sum(bool(self.sweep_of(row)) for row in rows)
            if 0 < swept < len(rows):
                raise ValueError(f"section {section!r}: all of its baselines must be swept or none")
            if not swept and sum(row.variants for row in rows) > 1:
                labels = ", ".join(repr(row.label) for row in rows)
                raise ValueError(
                    f"section {section!r} must have at most one baseline, got {labels}"
                    + " and what it varies" * (len(rows) == 1)
                )

    def sweep_of(self, row: RowTable) -> Table:
        """The row's own sweep, or the file's."""
        return self.sweep if row.sweep is None else row.sweep


@dataclass(frozen=True, kw_only=True)
class Experiment(File):
    """A file, and what the command line lays over it."""

    overrides: tuple[str, ...] = ()
    """``section.key=value``, for every row"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for assignment in self.overrides:
            root = _root(assignment)
            if root and root not in SECTIONS:
                raise ValueError(f"{visible(root)}: {unknown(root, SECTIONS)}")
            override({}, assignment)


OF_THE_FILE = ("seeds", "diagnosis", "validation")
"""What an override changes in the file itself and not in its rows."""


def _root(assignment: str) -> str:
    return assignment.partition("=")[0].split(".")[0].strip()


def load_experiment(place: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment in a file, given by its path or by the name of one that comes along.

    Overrides ``section.key=value`` win over what the file says for any row; ``seeds=[..]`` replaces
    the seeds, and ``diagnosis`` and ``validation`` are no part of any row.
    """
    path = locate(place)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8 text") from error
    except RecursionError as error:
        raise ValueError(f"{path}: is nested too deeply") from error
    except ValueError as error:  # a TOMLDecodeError, or an integer of thousands of digits
        raise ValueError(f"{path}: is not TOML: {error}") from error
    whole = [text for text in overrides if _root(text) in OF_THE_FILE]
    for assignment in whole:
        content = override(content, assignment)
    try:
        file = read(File, content)
        return Experiment(**vars(file), overrides=tuple(t for t in overrides if t not in whole))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
