"""Experiment files: TOML, read strictly; ``docs/lab.md`` explains the format."""

import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import product
from pathlib import Path, PurePosixPath, PureWindowsPath
from statistics import fmean
from typing import Any

from riselab.common.inputs import Hub, Known, Local, Reading
from riselab.common.settings import flat, override, read, short, unknown
from riselab.foresight.settings import read_sections
from riselab.pages.text import visible
from riselab.records.fields import PaperCell, Record

HERE = Path(__file__).resolve()
# Installed, they lie inside the package; in a checkout, beside ``src``.
PLACES = (HERE.parent / "files", HERE.parents[3] / "experiments")


def experiments() -> dict[str, Path]:
    """The files that come with the package, by their name, which is also written in them."""
    return {name: found.path for name, found in library().items()}


@dataclass(frozen=True)
class LibraryEntry:
    """An experiment that comes along, as far as one reads it without checking it."""

    path: Path
    title: str
    question: str = ""


def library() -> dict[str, LibraryEntry]:
    """What comes along, by name. TOML without rows belongs to other commands and is passed over."""
    folder = next((place for place in PLACES if place.is_dir()), None)
    found = {}
    for path in sorted(folder.rglob("*.toml")) if folder else []:
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found[path.stem] = LibraryEntry(path, "(cannot be read)")
            continue
        if "rows" in content:
            title = str(content.get("title") or content.get("description", ""))
            found[path.stem] = LibraryEntry(path, title, str(content.get("question", "")))
    return found


def locate(place: str | Path) -> Path:
    """The file of an experiment; a ``ValueError`` says which names exist."""
    path, known = Path(place).expanduser(), experiments()
    if path.is_file():
        return path
    if str(place) in known:
        return known[str(place)]
    if path.suffix == ".toml" or path.parent != Path("."):
        raise ValueError(f"there is no file {str(place)!r}")
    raise ValueError(f"experiment {str(place)!r}: {unknown(str(place), known)}")


Readings = Mapping[str, Reading]

_PART = r"""[^\s/\\'"`,;:()<>|]"""
PATH = re.compile(rf"(?<![\w.:/~-])(?:~?/|[A-Za-z]:[\\/])(?:{_PART}+[\\/])+{_PART}*")
"""A full path of at least two parts in the middle of a text."""


def absolute(plain: Any, readings: Readings, place: str = "") -> Any:
    """The settings with existing files by their full path."""
    if isinstance(plain, dict):
        return {key: absolute(value, readings, _join(place, key)) for key, value in plain.items()}
    reading = readings.get(place)
    if isinstance(reading, Local | Known) and isinstance(plain, str):
        path = Path(plain).expanduser()
        return str(path.absolute()) if path.exists() else plain
    return plain


def public(plain: Any, readings: Readings, place: str = "") -> Any:
    """The settings without this machine's folders: what is read by its last part, or hub name."""
    if isinstance(plain, dict):
        return {key: public(value, readings, _join(place, key)) for key, value in plain.items()}
    if isinstance(plain, list):
        return [public(value, readings, place) for value in plain]
    if not isinstance(plain, str) or not plain:
        return plain
    reading = readings.get(place)
    is_place = reading is not None and not isinstance(reading, Hub)
    return last_part(plain) if is_place or _is_full(plain) else plain


def last_part(path: str) -> str:
    """The file or folder name at the end of a path of any system."""
    kind = PureWindowsPath if PureWindowsPath(path).drive else PurePosixPath
    return kind(path).name or path


def without_paths(text: str, readings: Readings, *folders: Path) -> str:
    """A text for a record: paths below what was read from there on, all others by their end."""
    roots = [one.path for one in readings.values() if isinstance(one, Local | Known)]
    given = [Path(root).expanduser().absolute() for root in roots]
    for root in sorted({str(path) for path in (*given, *folders)}, key=len, reverse=True):
        text = text.replace(root, last_part(root))
    return PATH.sub(lambda found: last_part(found[0].rstrip("/\\")), text)


def _is_full(text: str) -> bool:
    full = PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()
    return full or text.startswith("~")


def _join(place: str, key: object) -> str:
    return f"{place}.{key}".lstrip(".")


TOGETHER = {"lr": ("head.lr", "adapter.lr")}
"""Short keys of a sweep for settings that change together."""


def check_values(where: str, values: dict[str, Any], sections: tuple[str, ...]) -> None:
    """What is varied or swept must be lists of values at places of the known sections."""
    for place, given in values.items():
        root = place.split(".")[0]
        if root not in sections:
            raise ValueError(f"{where}.{place}: {unknown(root, sections)}")
        if not isinstance(given, list) or not given:
            raise ValueError(f"{where}.{place} must be a list of values, got {given!r}")


def check_sweep(sweep: dict[str, Any], sections: tuple[str, ...]) -> None:
    """Every place at most once, whether by its own name or by a short key."""
    given = flat(sweep)
    check_values("sweep", given, (*sections, *TOGETHER))
    for key, places in TOGETHER.items():
        if twice := [place for place in places if key in given and place in given]:
            raise ValueError(f"sweep.{key} sets {twice[0]} too: give one of them only")


def points(sweep: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every combination: by the keys of the sweep, and by the places that these set."""
    given = flat(sweep)
    for values in product(*given.values()):
        named = dict(zip(given, values, strict=True))
        yield named, {p: v for key, v in named.items() for p in TOGETHER.get(key, (key,))}


def size(sweep: dict[str, Any]) -> int:
    """How many settings a sweep has."""
    return math.prod(len(values) for values in flat(sweep).values())


PART = "validation"
METRICS = {"avg": "average accuracy", "last": "last accuracy"}
LEAST = re.compile(rf"{PART}:forgetting where avg >= (\d+(?:\.\d+)?)")
"""Whoever learns least forgets least: without a bound, a choice by forgetting chooses the dead."""


def check_select(select: str) -> None:
    """What chooses must be a part of the data and one of its metrics."""
    whole = [f"{PART}:{metric}" for metric in METRICS]
    if select and select not in whole and not LEAST.fullmatch(select):
        ways = ", ".join([*whole, f"{PART}:forgetting where avg >= NUMBER"])
        raise ValueError(f"select must be one of {ways}, got {select!r}")


def in_words(select: str) -> str:
    """``validation:avg`` as a reader knows it."""
    part, _, metric = select.partition(":")
    if bound := LEAST.fullmatch(select):
        return f"least forgetting at an average accuracy of at least {bound[1]} on {part} data"
    return f"{METRICS.get(metric, metric)} on {part} data"


@dataclass(frozen=True)
class Choice:
    """One method: what its settings reached where it was chosen, and which of them that is."""

    section: str
    method: str
    by: str
    scores: Mapping[str, Mapping[int, float]]
    """By setting, then by seed; settings in the order of the sweep."""
    learned: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """The same, of what was learned, where the choice is by forgetting."""

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Those that every setting has: others would compare seeds instead of settings."""
        common = set.intersection(*(set(found) for found in self.scores.values()))
        return tuple(sorted(common))

    @cached_property
    def means(self) -> dict[str, float]:
        """The mean of each setting over the common seeds; empty where there are none."""
        if not self.seeds:
            return {}
        return {name: fmean(by[seed] for seed in self.seeds) for name, by in self.scores.items()}

    @property
    def setting(self) -> str | None:
        """The chosen one, of equals the first; None where no seed is common to all."""
        bound = LEAST.fullmatch(self.by)
        if not self.means or bound is None:
            return max(self.means, key=lambda name: self.means[name]) if self.means else None
        learned = {n: fmean(self.learned[n][seed] for seed in self.seeds) for n in self.means}
        enough = [name for name in self.means if learned[name] >= float(bound[1])]
        if not enough:  # then the one that learned most
            return max(learned, key=lambda name: learned[name])
        return min(enough, key=lambda name: self.means[name])

    @property
    def sentence(self) -> str:
        """What was chosen, and by what."""
        if self.setting is None:
            return f"{self.method}: nothing chosen, no seed has run at every setting"
        return f"{self.method} {self.setting} ({self.means[self.setting]:.1f})"


def choices(records: Iterable[Record]) -> list[Choice]:
    """One for each method of the runs that decide; of other runs nothing is read."""
    found: dict[tuple[str, str, str], list[dict[str, dict[int, float]]]] = {}
    for record in sorted(records, key=lambda one: one.row.order):
        row, metrics = record.row, record.result.metrics
        least = LEAST.fullmatch(row.decides) is not None
        value = metrics.get("forgetting" if least else row.decides.partition(":")[2])
        if row.decides and value is not None:
            scores, learned = found.setdefault((row.section, row.method, row.decides), [{}, {}])
            scores.setdefault(row.swept, {})[record.seed] = value
            if least:
                learned.setdefault(row.swept, {})[record.seed] = metrics["avg"] or 0.0
    return [Choice(*of, scores, learned) for of, (scores, learned) in found.items()]


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
    select: str | None = None
    """In place of the file's; ``""`` for a row of which all points are reported."""

    def __post_init__(self) -> None:
        if not self.label.strip():
            raise ValueError("label must not be blank")
        check_select(self.select or "")
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
    default: tuple[str, ...] = ()
    """The rows and sections that run where ``--only`` does not say which; empty: all."""
    seeds: tuple[int, ...] = (0,)
    sweep: Table = field(default_factory=dict)
    """For every row without a sweep."""
    select: str = ""
    """By what one point of each sweep is chosen for the report; without it all are reported."""
    select_seeds: tuple[int, ...] = ()
    """The seeds of the runs that choose, whichever report; empty: those that report."""
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
        check_select(self.select)
        if self.select and not any(self.sweep_of(row) for row in self.rows):
            raise ValueError("select: there must be a row with a sweep to select from")

    def _check_baselines(self) -> None:
        """Differences refer to the one baseline of a section; of two, neither would be it.

        Swept ones are read at equal learning, where several together are one reference. Where one
        point is selected, a swept row is one row like any other.
        """
        for section in {row.section for row in self.rows}:
            rows = [row for row in self.rows if row.section == section and row.baseline]
            swept = sum(bool(self.sweep_of(row)) and not self.select_of(row) for row in rows)
            if 0 < swept < len(rows):
                raise ValueError(f"section {section!r}: sweep all of its baselines or none")
            if not swept and sum(row.variants for row in rows) > 1:
                labels = ", ".join(repr(row.label) for row in rows)
                why = f"row {labels} varies a setting" if len(rows) == 1 else labels
                raise ValueError(f"section {section!r} has several baselines: {why}")

    def sweep_of(self, row: RowTable) -> Table:
        """The row's own sweep, or the file's."""
        return self.sweep if row.sweep is None else row.sweep

    def select_of(self, row: RowTable) -> str:
        """The row's own way to choose, or the file's."""
        return self.select if row.select is None else row.select


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
