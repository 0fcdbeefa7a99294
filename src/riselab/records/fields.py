"""The record's schema: every field with its type, limits, place in the file and meaning.

Reading, the check before writing and the table in ``docs/records.md`` come from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from riselab.records.reader import At, IfAbsent, NotBlank, NotEmpty, Percentages

FRAME = (
    (
        "schema",
        "integer",
        "version of this format. A newer one than the reader knows is refused, not guessed at",
    ),
    ("seal", "text", "shows whether the record was edited; see above. ``write_record`` adds it"),
)
"""What stands around the fields of ``Record`` in a file: name, type, meaning."""

Numbers = tuple[float | None, ...]
PercentNumbers = Annotated[Numbers, Percentages()]


@dataclass(frozen=True)
class PaperCell:
    """Which figure of the paper a row stands beside."""

    table: str
    """number of the table in the paper"""
    row: str
    """as the paper prints it"""
    column: Annotated[str, IfAbsent("")]
    """as the paper prints it"""


@dataclass(frozen=True)
class TableRow:
    """Where a run stands in a table; runs with the same experiment and label share a row."""

    label: Annotated[str, NotBlank()]
    """which row of the table; runs with the same experiment and label, differing in the seed only,
    form one"""
    section: str = ""
    """heading above the row, may be empty"""
    paper: PaperCell | None = None
    """the cell of the paper to stand beside, or null; see below"""
    baseline: bool = False
    """whether other rows (of the same section, if it has one) are compared with this one"""
    order: int = 0
    """the row's place in its experiment file"""
    why: str = ""
    """the reason, where the row trains otherwise than the others; may be empty"""
    method: str = ""
    """of a [sweep](lab.md#sweeps): what all its settings are called together"""
    swept: str = ""
    """of a sweep: the run's own setting, such as `lr=0.001`"""
    decides: str = ""
    """of a run that only helps to [choose a setting](lab.md#choosing-on-validation-data): by what,
    such as `validation:avg`. It is not reported as a result"""
    chosen_by: str = ""
    """of a run at a chosen setting: by what it was chosen"""


@dataclass(frozen=True)
class TaskRecord:
    """One task of the stream."""

    name: str
    """of the task"""
    classes: tuple[str, ...] = ()
    """names of its classes or labels"""
    train: int = 0
    """number of training examples"""
    validation: int = 0
    """number of validation examples"""
    test: int = 0
    """number of test examples"""
    answers: int = 0
    """of a model of one's own: how many answers its score counts, where `test` counts batches"""
    known: bool = False
    """whether it was known from the start: scored, never trained"""


@dataclass(frozen=True)
class ScoreRecord:
    """Percentages: ``matrix[t][i]`` on task ``i`` after session ``t``, ``union[t]`` on all seen.

    Entries above the diagonal may be absent or None; ``union`` is empty where it was not measured.
    """

    matrix: tuple[PercentNumbers, ...]
    """``matrix[t][i]``: on task ``i`` after session ``t``, counted from 0. One row per task;
    entries above the diagonal are absent or null"""
    union: PercentNumbers = ()
    """``union[t]``: after session ``t`` on the test data of all tasks so far. One number per task,
    or an empty list"""

    def at(self, t: int, i: int) -> float | None:
        """On task ``i`` after session ``t``; None where it was not measured."""
        return self.matrix[t][i] if i < len(self.matrix[t]) else None


@dataclass(frozen=True)
class LinePoint:
    """Weights on the line from where training began to where it ended."""

    share: float | None
    """of the way, from 0 to 1"""
    scores: Mapping[str, PercentNumbers]
    """by name of the score: one percentage per task"""


@dataclass(frozen=True)
class Loss:
    """Mean training loss of an epoch."""

    task: int
    """counted from 0"""
    epoch: int
    """counted from 0 within the task"""
    loss: float | None
    """null where it was not a number"""


@dataclass(frozen=True)
class Result:
    """What two identical runs have in common."""

    tasks: Annotated[tuple[TaskRecord, ...], NotEmpty("task")]
    """the tasks in the order of the stream, with their numbers of examples"""
    scores: Mapping[str, ScoreRecord]
    """one or several named scores, in percent"""
    main_score: str
    """which of the scores ``metrics`` are computed from"""
    metrics: Mapping[str, float | None]
    """numbers, null where undefined (forgetting with one task); [Metrics](metrics.md) has the
    definitions"""
    before: Mapping[str, PercentNumbers] = field(default_factory=dict)
    """by name of the score: one percentage per task before the first session. Absent or empty where
    it was not measured"""
    line: tuple[LinePoint, ...] = ()
    """what weights between start and end of training score, where `loop.interpolate` asks for it"""
    losses: tuple[Loss, ...] = ()
    """mean training loss per task and epoch"""
    trainable: Mapping[str, int] = field(default_factory=dict)
    """trained parameters by kind"""
    memory_bytes: tuple[int, ...] = ()
    """of a run that remembers what is to be kept: bytes of its memory after each session"""
    data_bytes: tuple[int, ...] = ()
    """of such a run: bytes of the examples that its memory stands for, as they are read: one for
    each colour of a pixel, UTF-8 of a text"""
    notes: tuple[str, ...] = ()
    """what a reader of the numbers should know"""


@dataclass(frozen=True)
class Run:
    """What may differ between two identical runs. Seconds of training and scoring are per task."""

    started: str = ""
    """date and time, ISO 8601"""
    finished: str = ""
    """date and time, ISO 8601"""
    resumed: int = 0
    """how often the run was interrupted and went on"""
    train_seconds: Annotated[Numbers, At("seconds", "train")] = ()
    """of training, per task"""
    score_seconds: Annotated[Numbers, At("seconds", "score")] = ()
    """of scoring, per task"""
    remember_seconds: Annotated[Numbers, At("seconds", "remember")] = ()
    """of making the memory of each session, where there is one (part of its training)"""
    total_seconds: Annotated[float | None, At("seconds", "total")] = None
    """of the whole run"""
    peak_rss_bytes: Annotated[float | None, At("memory", "peak_rss_bytes")] = None
    """most memory that the process held"""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Python, platform, device, threads and the versions of packages"""
    git: Mapping[str, Any] = field(default_factory=dict)
    """commit of the source and whether it was changed since; empty where it is no checkout"""
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """what the run read, by name and SHA-256, or hub name and commit"""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """the [plugins](guides/plugins.md) that were loaded, by name and version"""
    known_as: str = ""
    """the id with the hub's commits, if they became known during the run"""


@dataclass(frozen=True)
class Identity:
    """What the id is made of; ``docs/records.md`` says why."""

    settings: Mapping[str, Any]
    """the settings that are not the default, the seed included"""
    inputs: Mapping[str, Any]
    """what was read, by the setting that names it"""


@dataclass(frozen=True)
class Record:
    """One run."""

    path: Path
    id: str
    """SHA-256 of ``identity``; see above"""
    identity: Identity
    """what the id is made of"""
    experiment: str
    """name of the experiment; rows of different experiments are never mixed"""
    row: TableRow
    """where the run stands in a table"""
    seed: int
    """at most 64 bits; rows are compared with the baseline at the same seed"""
    config: Mapping[str, Any]
    """all settings of the run, as many keys as it takes; files by the last part of their path"""
    result: Result
    """what two identical runs have in common"""
    run: Run = Run()
    """what may differ between two identical runs"""

    def setting(self, *keys: str) -> Any:
        """A value of the configuration, ``setting("rule", "q")``, or None."""
        value: Any = self.config
        for key in keys:
            if not isinstance(value, Mapping):
                return None
            value = value.get(key)
        return value
