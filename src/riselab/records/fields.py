"""The record's schema: every field with its type, limits, place in the file and meaning.

Reading, the check before writing and the table in ``docs/records.md`` come from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from riselab.common.settings import APART, short


class NotBlank:
    """A text that says something."""

    def check(self, name: str, value: str, kind: Any) -> None:
        """Raise an error if there are only spaces."""
        if not value.strip():
            raise ValueError(f"{name} must be a text {self.words()}, got {value!r}")

    def words(self) -> str:
        """What is asked of the text."""
        return "that is not blank"


@dataclass(frozen=True)
class Within:
    """A number between two others, up to rounding."""

    low: float
    high: float
    unit: str = ""
    slack: float = 0.0

    def check(self, name: str, value: float, kind: Any) -> None:
        """Raise an error if the number is outside."""
        if not self.low - self.slack <= value <= self.high + self.slack:
            unit = f" {self.unit}" * bool(self.unit)
            between = f"between {self.low:g} and {self.high:g}{unit}"
            raise ValueError(f"{name} must be {between}, got {short(value)}")

    def words(self) -> str:
        """What a reader should know of it."""
        return self.unit


# Beyond the first, sums of squares are no numbers any more; beyond the second, torch takes no seed.
Number = Annotated[float, Within(-1e100, 1e100)]
Whole = Annotated[int, Within(-(2**63), 2**64 - 1)]
Percent = Annotated[float, Within(0, 100, "in percent", slack=1e-3)]
Numbers = tuple[Number | None, ...]
Percentages = tuple[Percent | None, ...]


@dataclass(frozen=True)
class PaperCell:
    """The number of the paper to compare a row with."""

    table: str
    """number of the table in the paper"""
    row: str
    """as the paper prints it"""
    column: str
    """as the paper prints it"""


@dataclass(frozen=True)
class TableRow:
    """The place of a run in a table; runs with the same experiment and label share a row."""

    label: Annotated[str, NotBlank()]
    """the row of the table; runs with the same experiment and label form one row and differ only
    in the seed"""
    section: str = ""
    """heading above the row, may be empty"""
    paper: PaperCell | None = None
    """the cell of the paper to compare with, or null; see below"""
    baseline: bool = False
    """whether other rows (of the same section, if it has one) are compared with this one"""
    order: Whole = 0
    """the row's place in its experiment file"""
    why: str = ""
    """the reason if the row trains in another way than the others; may be empty"""
    method: str = ""
    """in a [sweep](lab.md#sweeps): the name of all its settings together"""
    swept: str = ""
    """in a sweep: the setting of this run, such as `lr=0.001`"""
    decides: str = ""
    """in a run that only helps to [choose a setting](lab.md#choosing-on-validation-data): by what,
    such as `validation:avg`. It is not reported as a result"""
    chosen_by: str = ""
    """in a run at a chosen setting: by what it was chosen"""


@dataclass(frozen=True)
class TaskRecord:
    """One task of the stream."""

    name: str
    """of the task"""
    classes: tuple[str, ...] = ()
    """names of its classes or labels"""
    train: Whole = 0
    """number of training examples"""
    validation: Whole = 0
    """number of validation examples"""
    test: Whole = 0
    """number of test examples"""
    answers: Whole = 0
    """for your own model: how many answers its score counts, if `test` counts batches"""
    known: bool = False
    """whether it was known from the start: scored, never trained"""


@dataclass(frozen=True)
class ScoreRecord:
    """Percentages: ``matrix[t][i]`` on task ``i`` after session ``t``, ``union[t]`` on all seen.

    Entries above the diagonal may be absent or None; ``union`` is empty where it was not measured.
    """

    matrix: tuple[Percentages, ...]
    """``matrix[t][i]``: on task ``i`` after session ``t``, counted from 0. One row per task;
    entries above the diagonal are absent or null"""
    union: Percentages = ()
    """``union[t]``: after session ``t`` on the test data of all tasks so far. One number per task,
    or an empty list"""

    def at(self, t: int, i: int) -> float | None:
        """On task ``i`` after session ``t``; None where it was not measured."""
        return self.matrix[t][i] if i < len(self.matrix[t]) else None

    def check(self, name: str, tasks: int) -> None:
        """Raise an error where there are more or fewer numbers than there are tasks."""
        if len(self.matrix) != tasks:
            raise ValueError(f"{name}.matrix must be one row per task, {tasks} here")
        for t, row in enumerate(self.matrix):
            if len(row) > tasks:
                raise ValueError(f"{name}.matrix[{t}] must be at most {tasks} numbers")
        if len(self.union) not in (0, tasks):
            raise ValueError(f"{name}.union must be one number per task, {tasks} here, or none")


@dataclass(frozen=True)
class LinePoint:
    """Weights on the line from the beginning of training to its end."""

    scores: Mapping[str, Percentages]
    """by name of the score: one percentage per task"""
    share: Number | None = None
    """of the way, from 0 to 1"""


@dataclass(frozen=True)
class Loss:
    """Mean training loss of an epoch."""

    task: Whole
    """counted from 0"""
    epoch: Whole
    """counted from 0 within the task"""
    loss: Number | None = None
    """null if it was not a number"""


@dataclass(frozen=True)
class Result:
    """What two identical runs have in common."""

    tasks: tuple[TaskRecord, ...]
    """the tasks in the order of the stream, with their numbers of examples"""
    scores: Mapping[str, ScoreRecord]
    """one or several named scores, in percent"""
    main_score: str
    """which of the scores ``metrics`` are computed from"""
    metrics: Mapping[str, Number | None]
    """numbers, null where undefined (forgetting with one task); [Metrics](metrics.md) has the
    definitions"""
    before: Mapping[str, Percentages] = field(default_factory=dict)
    """by name of the score: one percentage per task before the first session. Absent or empty if it
    was not measured"""
    line: tuple[LinePoint, ...] = ()
    """scores of weights between start and end of training, if `loop.interpolate` asks for them"""
    losses: tuple[Loss, ...] = ()
    """mean training loss per task and epoch"""
    trainable: Mapping[str, Whole] = field(default_factory=dict)
    """trained parameters by kind"""
    memory_bytes: tuple[Whole, ...] = ()
    """in a run with a memory: bytes of the memory after each session"""
    data_bytes: tuple[Whole, ...] = ()
    """in such a run: bytes of the examples that its memory replaces: one for each colour of a
    pixel, UTF-8 of a text"""
    notes: tuple[str, ...] = ()
    """remarks for readers of the numbers"""

    def __post_init__(self) -> None:
        count = len(self.tasks)
        if not self.tasks:
            raise ValueError("tasks must be a list with at least one task, got []")
        for name, score in self.scores.items():
            score.check(f"scores.{name}", count)
        if self.main_score not in self.scores:
            known = ", ".join(self.scores)
            raise ValueError(f"main_score must be one of {known}; got {self.main_score!r}")
        for name, values in self.before.items():
            if len(values) > count:
                raise ValueError(f"before.{name} must be at most {count} numbers")


@dataclass(frozen=True)
class Seconds:
    """How long a run took."""

    train: Numbers = ()
    """of training, per task"""
    score: Numbers = ()
    """of scoring, per task"""
    remember: Numbers = ()
    """of making the memory of each session, if there is one (part of its training)"""
    total: Number | None = None
    """of the whole run"""


@dataclass(frozen=True)
class PeakMemory:
    """How much memory a run took."""

    peak_rss_bytes: Number | None = None
    """most memory that the process held"""


@dataclass(frozen=True)
class Run:
    """What may differ between two identical runs."""

    started: str = ""
    """date and time, ISO 8601"""
    finished: str = ""
    """date and time, ISO 8601"""
    resumed: Whole = 0
    """how often the run was interrupted and continued"""
    seconds: Seconds = Seconds()
    """of the whole run and its parts"""
    memory: PeakMemory = PeakMemory()
    """the most that the run held at a time"""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Python, platform, device, threads and the versions of packages"""
    git: Mapping[str, Any] = field(default_factory=dict)
    """commit of the source and whether it was changed since; empty outside a checkout"""
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """what the run read, by name and SHA-256, or hub name and commit"""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """the [plugins](guides/plugins.md) that were loaded, by name and version"""
    known_as: str = ""
    """the id with the hub's commits, if they became known during the run"""


@dataclass(frozen=True)
class Identity:
    """The contents of the id; ``docs/records.md`` says why."""

    settings: Mapping[str, Any]
    """the settings that differ from the defaults, and the seed"""
    inputs: Mapping[str, Any]
    """what was read, by the setting that names it"""


@dataclass(frozen=True)
class Record:
    """One run."""

    id: str
    """SHA-256 of ``identity``; see above"""
    identity: Identity
    """the contents of the id"""
    experiment: str
    """name of the experiment; rows of different experiments are never mixed"""
    row: TableRow
    """the run's place in a table"""
    seed: Whole
    """at most 64 bits; rows are compared with the baseline at the same seed"""
    config: Mapping[str, Any]
    """all settings of the run, as many keys as it takes; files by the last part of their path"""
    result: Result
    """what two identical runs have in common"""
    run: Run = Run()
    """what may differ between two identical runs"""
    path: Path = field(default_factory=Path, metadata=APART)
    """where it lies; not in the file"""

    def setting(self, *keys: str) -> Any:
        """A value of the configuration, ``setting("rule", "q")``, or None."""
        value: Any = self.config
        for key in keys:
            if not isinstance(value, Mapping):
                return None
            value = value.get(key)
        return value
