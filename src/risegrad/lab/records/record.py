"""Records: what a run leaves behind, one JSON file each; ``docs/records.md`` explains the fields.

``write_record`` checks what it writes with the reader's own rules, so that whatever it wrote can be
read, and seals it: what was changed afterwards is refused. Keys that this version does not know are
ignored; another ``schema`` is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from risegrad.common.atomic_files import write_json
from risegrad.common.settings import digest
from risegrad.lab.records.record_reader import JsonPart, NotARecord, RecordError, deeper_than

SCHEMA = 2
NAME = "record.json"
"""What a run calls its record; in a folder, other ``*.json`` files may be records too."""

LARGEST = 256 * 2**20  # bytes; a record is far smaller, a file beyond this is a mistake
DEEPEST = 40  # levels of objects and lists within each other
SEALED = ("id", "seed", "identity", "config", "result")
"""What the seal is made of, with ``run.inputs``. Rows may be renamed; times are nobody's claim."""
SLACK = 1e-3  # how far a percentage may lie outside [0, 100] by rounding


@dataclass(frozen=True)
class PaperCell:
    """Which figure of the paper a row stands beside."""

    table: str
    row: str
    column: str


@dataclass(frozen=True)
class TableRow:
    """Where a run stands in a table; runs with the same experiment and label share a row."""

    label: str
    section: str = ""
    paper: PaperCell | None = None
    baseline: bool = False
    order: int = 0
    why: str = ""
    method: str = ""
    """Of a swept row: what all settings of the sweep are called together, one curve in a report"""
    swept: str = ""
    """and its own setting: ``lr=0.001``"""


@dataclass(frozen=True)
class TaskRecord:
    name: str
    classes: tuple[str, ...] = ()
    train: int = 0
    validation: int = 0
    test: int = 0


@dataclass(frozen=True)
class ScoreRecord:
    """Percentages: ``matrix[t][i]`` on task ``i`` after session ``t``, ``union[t]`` on all seen.

    Entries above the diagonal may be absent or None; ``union`` is empty where it was not measured.
    """

    matrix: tuple[tuple[float | None, ...], ...]
    union: tuple[float | None, ...] = ()

    def at(self, t: int, i: int) -> float | None:
        return self.matrix[t][i] if i < len(self.matrix[t]) else None


@dataclass(frozen=True)
class Loss:
    task: int
    epoch: int
    loss: float | None
    """None where it was not a number"""


@dataclass(frozen=True)
class Result:
    """What two identical runs have in common."""

    tasks: tuple[TaskRecord, ...]
    scores: Mapping[str, ScoreRecord]
    main_score: str
    metrics: Mapping[str, float | None]
    before: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """By score, percentages on every task before the first session; empty where not measured."""
    losses: tuple[Loss, ...] = ()
    trainable: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """What may differ between two identical runs. Seconds of training and scoring are per task."""

    started: str = ""
    finished: str = ""
    resumed: int = 0
    train_seconds: tuple[float | None, ...] = ()
    score_seconds: tuple[float | None, ...] = ()
    total_seconds: float | None = None
    peak_rss_bytes: float | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    git: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    known_as: str = ""
    """The id with the revisions that the hub gave, where they were not known before the run."""


@dataclass(frozen=True)
class Identity:
    """What the id is made of; ``docs/records.md`` says why."""

    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    path: Path
    id: str
    identity: Identity
    experiment: str
    row: TableRow
    seed: int
    config: Mapping[str, Any]
    result: Result
    run: Run

    def setting(self, *keys: str) -> Any:
        """A value of the configuration, ``setting("rule", "q")``, or None."""
        value: Any = self.config
        for key in keys:
            if not isinstance(value, Mapping):
                return None
            value = value.get(key)
        return value


def read_record(path: Path | str) -> Record:
    """The record in a file; a ``RecordError`` names the file and what is wrong with it."""
    path = Path(path)
    return _record(path, JsonPart(path, "", _load(path)))


def read_records(paths: Iterable[Path | str]) -> tuple[list[Record], list[RecordError]]:
    """The records in files and folders, and what could not be read.

    In a folder, JSON that is no record at all is passed over unless it is called ``record.json``.
    """
    places = [Path(path) for path in paths]
    given = {place.resolve() for place in places}
    records: list[Record] = []
    problems: list[RecordError] = []
    for path in find_records(places):
        try:
            records.append(read_record(path))
        except NotARecord as error:
            if path.name == NAME or path.resolve() in given:
                problems.append(error)
        except RecordError as error:
            problems.append(error)
    return records, problems


def find_records(paths: Iterable[Path | str]) -> list[Path]:
    """The files that may be records, each once: files as given, ``*.json`` below folders, sorted.

    Hidden files and folders are left out: they are unfinished writes, caches and the like.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        for file in _below(path) if path.is_dir() else [path]:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def write_record(path: Path | str, content: dict[str, Any]) -> None:
    """Seal, check and write atomically: a reader sees the old file or the whole new one."""
    path = Path(path)
    content = sealed(_faithful(path, content))
    _record(path, JsonPart(path, "", content))
    write_json(path, content)


def rename_row(path: Path, row: Mapping[str, Any]) -> None:
    """Let a record that can be read stand in another row; everything else stays as it is."""
    content: dict[str, Any] = _load(path)
    if content["row"] != row:
        write_json(path, content | {"row": dict(row)})


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a hash of what must not be changed."""
    return {**content, "seal": _seal(content)}


def _seal(content: Mapping[str, Any]) -> str:
    run = content.get("run")
    inputs = run.get("inputs") if isinstance(run, Mapping) else None
    return digest({key: content.get(key) for key in SEALED} | {"inputs": inputs or {}})


def _below(folder: Path) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = sorted(name for name in files if name.endswith(".json") and name[0] != ".")
        found += [Path(parent, name) for name in names if Path(parent, name).is_file()]
    return found


def _load(path: Path) -> Any:
    try:
        if path.stat().st_size > LARGEST:
            raise RecordError(path, f"larger than {LARGEST // 2**20} MiB: this is no record")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(path, f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise RecordError(path, "is not UTF-8 text") from error
    if not text.strip():
        raise RecordError(path, "is empty")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(path, f"is not complete JSON ({error})") from error
    return _faithful(path, content)


def _faithful(path: Path, content: Any) -> Any:
    """Content that every JSON reader and UTF-8 can carry: no NaN, infinity or half a character."""
    if deeper_than(DEEPEST, content):
        raise RecordError(path, f"is nested deeper than {DEEPEST} levels: this is no record")
    try:
        json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RecordError(path, "has text that is not Unicode") from error
    except ValueError as error:
        raise RecordError(path, "has NaN or infinity; write null where undefined") from error
    except TypeError as error:
        raise RecordError(path, str(error)) from error
    return content


def _record(path: Path, part: JsonPart) -> Record:
    if not part.content.keys() & {"experiment", "row", "result"}:
        raise NotARecord(path, "is not a record: no experiment, row or result")
    schema = part.integer("schema")
    if schema > SCHEMA:
        raise RecordError(path, f"has schema {schema}, newer than {SCHEMA}, the newest known here")
    if schema < SCHEMA:
        raise RecordError(path, f"has schema {schema}, which does not say what was read; run again")
    record = Record(
        path=path,
        id=part.text("id"),
        identity=_identity(part.part("identity")),
        experiment=part.text("experiment"),
        row=_row(part.part("row")),
        seed=part.integer("seed"),
        config=part.part("config").content,
        result=_result(part.part("result")),
        run=_run(part.part("run", optional=True)),
    )
    _check_unchanged(record, part)
    return record


def _identity(part: JsonPart) -> Identity:
    return Identity(part.part("settings").content, part.part("inputs").content)


def _check_unchanged(record: Record, part: JsonPart) -> None:
    """A record that was edited by hand is no record of a run."""
    if digest(part.content["identity"]) != record.id:
        raise RecordError(record.path, "was edited: its id is not that of its settings and inputs")
    if others := list(_others(record.identity.settings, record.config)):
        reason = f"was edited: config does not match its id in {', '.join(others)}"
        raise RecordError(record.path, reason)
    if part.text("seal") != _seal(part.content):
        changed = ", ".join((*SEALED, "run.inputs"))
        raise RecordError(record.path, f"was edited: its seal does not match ({changed})")


def _others(own: Mapping[Any, Any], config: Mapping[Any, Any], above: str = "") -> Iterator[str]:
    """The places where the whole configuration says something else than its essence."""
    for key, value in own.items():
        found = config.get(key)
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            yield from _others(value, found, f"{above}{key}.")
        elif isinstance(value, list) and isinstance(found, list) and len(value) == len(found):
            numbered = dict(enumerate(value)), dict(enumerate(found))
            yield from _others(*numbered, f"{above}{key}.")
        elif found != value:
            yield f"{above}{key}"


def _row(part: JsonPart) -> TableRow:
    label = part.text("label")
    if not label.strip():
        raise part.fail("label", "text that is not blank")
    cell = part.part("paper") if part.has("paper") else None
    paper = (
        PaperCell(cell.text("table"), cell.text("row"), cell.text("column", "")) if cell else None
    )
    order, why = part.integer("order", 0), part.text("why", "")
    method, swept = part.text("method", ""), part.text("swept", "")
    section, baseline = part.text("section", ""), part.flag("baseline")
    return TableRow(label, section, paper, baseline, order, why, method, swept)


def _result(part: JsonPart) -> Result:
    tasks = tuple(_task(item) for item in part.parts("tasks"))
    if not tasks:
        raise part.fail("tasks", "a list with at least one task")
    named = part.part("scores")
    scores = {name: _score(named.part(name), len(tasks)) for name in named.content}
    main_score = part.text("main_score")
    if main_score not in scores:
        raise part.fail("main_score", f"one of {sorted(scores)}")
    metrics, before = part.part("metrics"), part.part("before", optional=True)
    trainable = part.part("trainable", optional=True)
    return Result(
        tasks=tasks,
        scores=scores,
        main_score=main_score,
        metrics={name: metrics.number(name) for name in metrics.content},
        before={name: _percentages(before, name, len(tasks)) for name in before.content},
        losses=tuple(
            Loss(p.integer("task"), p.integer("epoch"), p.number("loss"))
            for p in part.parts("losses")
        ),
        trainable={name: trainable.integer(name) for name in trainable.content},
        notes=part.texts("notes"),
    )


def _task(part: JsonPart) -> TaskRecord:
    counts = {name: part.integer(name, 0) for name in ("train", "validation", "test")}
    return TaskRecord(part.text("name"), part.texts("classes"), **counts)


def _score(part: JsonPart, tasks: int) -> ScoreRecord:
    rows = part.list("matrix")
    if len(rows) != tasks:
        raise part.fail("matrix", f"one row per task, {tasks} here")
    whole = JsonPart(part.path, f"{part.place}.matrix", {str(t): row for t, row in enumerate(rows)})
    matrix = tuple(_percentages(whole, str(t), tasks) for t in range(tasks))
    union = _percentages(part, "union", tasks)
    if union and len(union) != tasks:
        raise part.fail("union", f"one number per task, {tasks} here, or none")
    return ScoreRecord(matrix, union)


def _percentages(part: JsonPart, key: str, most: int) -> tuple[float | None, ...]:
    values = part.numbers(key)
    if len(values) > most:
        raise part.fail(key, f"at most {most} numbers")
    if not all(v is None or -SLACK <= v <= 100 + SLACK for v in values):
        raise part.fail(key, "percentages in [0, 100]")
    return values


def _run(part: JsonPart) -> Run:
    seconds, memory = part.part("seconds", optional=True), part.part("memory", optional=True)
    return Run(
        started=part.text("started", ""),
        finished=part.text("finished", ""),
        resumed=part.integer("resumed", 0),
        train_seconds=seconds.numbers("train"),
        score_seconds=seconds.numbers("score"),
        total_seconds=seconds.number("total"),
        peak_rss_bytes=memory.number("peak_rss_bytes"),
        environment=part.part("environment", optional=True).content,
        git=part.part("git", optional=True).content,
        inputs=_inputs(part.part("inputs", optional=True)),
        known_as=part.text("known_as", ""),
    )


def _inputs(part: JsonPart) -> dict[str, Any]:
    return {place: part.part(place).content for place in part.content}
