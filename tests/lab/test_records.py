"""Records: what is read back, what is refused and how that is said, atomic writing."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from report.made_up import record, save
from risegrad.common.seal import sealed
from riselab.records.fields import PaperCell
from riselab.records.record import (
    NotARecord,
    RecordError,
    find_records,
    read_record,
    read_records,
    write_record,
)


def changed(place: str, value: Any) -> dict[str, Any]:
    """A good record with one value replaced, or removed where the value is ``...``."""
    content = record()
    *parents, last = [int(key) if key.isdigit() else key for key in place.split(".")]
    inner: Any = content
    for key in parents:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return content


def nested(levels: int) -> Any:
    content: Any = {}
    for _ in range(levels):
        content = {"a": content}
    return content


def stored(folder: Path, content: Any) -> Path:
    path = folder / "record.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    place = {"table": "1", "row": "ZO-FC", "column": "CIFAR100 Inc-5"}
    content = record("ZO-FC", 3, section="ZO Optimization", paper=place, q=4, notes=["slow disk"])
    found = read_record(save(tmp_path, content)[0])
    assert (found.experiment, found.seed, found.id) == ("digits", 3, content["id"])
    assert found.row.paper == PaperCell("1", "ZO-FC", "CIFAR100 Inc-5")
    assert found.row.section == "ZO Optimization"
    assert found.setting("rule", "q") == 4
    assert found.setting("rule", "q", "more") is None
    assert found.result.notes == ("slow disk",)
    assert found.result.metrics["avg"] == content["result"]["metrics"]["avg"]
    matrix = content["result"]["scores"]["accuracy"]["matrix"]
    score = found.result.scores["accuracy"]
    assert [list(row) for row in score.matrix] == matrix
    assert score.at(4, 1) == matrix[4][1]
    assert score.at(0, 3) is None
    assert found.run.seconds.train == tuple(content["run"]["seconds"]["train"])
    assert found.run.memory.peak_rss_bytes == 500 * 2**20


def test_unknown_keys_and_missing_run_are_fine(tmp_path: Path) -> None:
    content = record() | {"later": [1]}
    del content["run"]
    content = sealed(content)
    assert read_record(stored(tmp_path, content)).run.seconds.total is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is empty"),
        ('{"schema": 1, "row', "is not complete JSON (Unterminated string"),
        ("[" * 100_000, "is not complete JSON (maximum recursion depth"),
        (changed("schema", 3), "has schema 3; this version reads up to 2"),
        (changed("schema", 1), "has schema 1, which does not name its data; run again"),
        (changed("schema", ...), "schema: expected an integer, got None"),
        (changed("seed", True), "seed: expected an integer, got True"),
        (changed("row.label", 5), "row.label: expected a text, got 5"),
        (changed("row.label", " "), "row.label must be a text that is not blank, got ' '"),
        (changed("row.baseline", "yes"), "row.baseline: expected true or false, got 'yes'"),
        (changed("row.paper", {"table": "1"}), "row.paper.row: missing, expected a text"),
        (changed("result", ...), "result: missing, expected a table"),
        (
            changed("result.tasks", []),
            "result: tasks must be a list with at least one task",
        ),
        (changed("result.tasks.0", 7), "result.tasks[0]: expected a table, got 7"),
        (
            changed("result.main_score", "f1"),
            "main_score must be one of accuracy; got 'f1'",
        ),
        (changed("result.metrics.avg", "89"), "result.metrics.avg: expected a number, got '89'"),
        (
            changed("result.metrics.avg", 10**400),
            "metrics.avg: expected a finite number, got 1",
        ),
        (
            changed("result.metrics.avg", 1e308),
            "metrics.avg must be between -1e+100 and 1e+100",
        ),
        (changed("seed", 10**400), "seed must be between -9.22337e+18 and 1.84467e+19, got 1000"),
        (changed("row.order", 2**70), "row.order must be between -9.22337e+18 and 1.8"),
        (changed("config.rule", nested(900)), "is nested deeper than 40 levels"),
        (
            changed("config.rule.name", "fo"),
            "config does not match its id in rule.name",
        ),
        (changed("config.more", 1), "was edited: its seal does not match"),
        (changed("identity.settings.rule.name", "fo"), "was edited: its id is not that of its"),
        (changed("identity", ...), "identity: missing, expected a table"),
        (changed("run.inputs", {"a": {"sha256": "b"}}), "was edited: its seal does not match"),
        (changed("result.metrics.avg", 99.0), "was edited: its seal does not match"),
        (changed("seal", ...), "was edited: its seal does not match"),
        (
            changed("result.scores.accuracy.matrix", [[1.0]]),
            "result: scores.accuracy.matrix must be one row per task, 5 here",
        ),
        (
            changed("result.scores.accuracy.matrix.0", [101.0]),
            "result.scores.accuracy.matrix[0][0] must be between 0 and 100 in percent, got 101.0",
        ),
        (changed("result.scores.accuracy.union", [1.0]), "one number per task, 5 here, or none"),
        (
            changed("result.before", {"accuracy": [1.0] * 6}),
            "result: before.accuracy must be at most 5 numbers",
        ),
        (changed("result.notes", [1]), "result.notes[0]: expected a text, got 1"),
        (changed("run.seconds", 12), "run.seconds: expected a table, got 12"),
        (json.dumps(changed("seed", 1)).replace(": 1", ": NaN", 1), "has NaN or infinity"),
        (json.dumps(record()).replace("12.3", "1e999"), "has NaN or infinity"),
        (json.dumps(record()).replace('"FO"', '"\\ud800"'), "has text that is not Unicode"),
    ],
)
def test_what_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, content: Any, reason: str
) -> None:
    path = stored(tmp_path, content)
    with pytest.raises(RecordError) as caught:
        read_record(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)


def test_files_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(RecordError, match="is not UTF-8 text"):
        read_record(tmp_path / "record.json")
    with pytest.raises(RecordError, match=r"cannot be read \(No such file"):
        read_record(tmp_path / "none.json")
    with pytest.raises(RecordError, match=r"cannot be read \(Is a directory"):
        read_record(tmp_path)


@pytest.mark.parametrize("content", [{"schema": 1, "d": 64}, [1, 2], 5])
def test_other_json_is_not_a_record(tmp_path: Path, content: Any) -> None:
    with pytest.raises(NotARecord):
        read_record(stored(tmp_path, content))


def test_folders_are_searched_and_files_taken_once(tmp_path: Path) -> None:
    first, second = save(tmp_path / "a", record("FO", 0), record("FO", 1))
    hidden = tmp_path / ".cache" / "record.json"
    hidden.parent.mkdir()
    hidden.write_text("{}")
    (first.parent / ".record-x.json").write_text("{")  # an unfinished write
    (tmp_path / "notes.txt").write_text("no")
    found = find_records([tmp_path, first, first.parent / ".." / first.parent.name])
    assert sorted(found) == sorted([first, second])
    assert find_records([first]) == [first]


def test_other_json_in_a_folder_is_passed_over_but_broken_files_are_not(tmp_path: Path) -> None:
    save(tmp_path / "good", record())
    (tmp_path / "sandbox.json").write_text('{"schema": 1}')
    (tmp_path / "cut.json").write_text('{"schema": 1,')
    records, problems = read_records([tmp_path])
    assert len(records) == 1
    assert [problem.path.name for problem in problems] == ["cut.json"]
    _, problems = read_records([tmp_path / "sandbox.json"])
    assert "is not a record" in str(problems[0])


def test_only_what_can_be_read_is_written(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_record(path, record())
    before = path.read_bytes()
    with pytest.raises(RecordError, match="seed: expected an integer"):
        write_record(path, changed("seed", "0"))
    with pytest.raises(RecordError, match="NaN or infinity; write null"):
        write_record(path, changed("result.metrics.avg", float("nan")))
    with pytest.raises(RecordError, match="not JSON serializable"):
        write_record(path, changed("config.seed", object()))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_failed_write_leaves_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record.json"
    write_record(path, record("FO", 0))
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_record(path, record("FO", 1))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["record.json"]


def test_the_documented_record_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "records.md").read_text(encoding="utf-8")
    example = text.split("```json\n")[1].split("```")[0]
    found = read_record(stored(tmp_path, example))
    assert found.result.metrics["last"] == found.result.scores["accuracy"].union[-1]


def test_what_may_be_absent_is_what_the_documentation_calls_optional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("markdown", reason="markdown is not installed")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs"))
    table = import_module("declarations").record()
    assert "| `run.seconds.train` | a list (a number or null each), optional |" in "\n".join(table)
    full = record(paper={"table": "1", "row": "ZO-FC", "column": "CIFAR100 Inc-5"})
    for line in table[2:]:
        place, kind, *_ = line.strip("| ").split(" | ")
        keys = place.strip("`").replace("[]", ".0").replace("NAME", "accuracy").split(".")
        content = json.loads(json.dumps(full))
        inner = content
        for key in keys[:-1]:
            found = inner[int(key)] if key.isdigit() and inner else {}
            inner = inner.get(key, {}) if isinstance(inner, dict) else found
        if not isinstance(inner, dict) or keys[-1] not in inner:
            continue
        del inner[keys[-1]]
        path = stored(tmp_path, content if keys == ["seal"] else sealed(content))
        if kind.endswith("optional"):
            read_record(path)
        else:
            with pytest.raises(RecordError, match=r"missing|its seal|an integer, got"):
                read_record(path)
