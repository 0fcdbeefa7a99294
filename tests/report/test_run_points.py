"""Where a run started from, borrowed where it did not look, and how large a gain must be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from report.made_up import record, save
from riselab.records.fields import Record
from riselab.records.record import read_records
from riselab.report.builder import build
from riselab.report.rows import ResultRow, UntrainedModels, gather, standard_error

TASKS, SIZE = 5, 20


def run(label: str, new: float, seed: int = 0, before: float | None = None, **more: Any) -> Any:
    """``before`` is what the untrained model scored, where the run looked."""
    content = record(label, seed, tasks=TASKS, **more)
    for task in content["result"]["tasks"]:
        task["test"] = SIZE
    content["result"]["metrics"] |= {"plasticity": new, "forgetting": 0.0}
    content["result"]["before"] = {} if before is None else {"accuracy": [before] * TASKS}
    return content


def rows(folder: Path, *contents: Any) -> dict[str, ResultRow]:
    save(folder, *contents)
    (experiment,), _ = gather(read_records([folder])[0])
    return {row.label: row for row in experiment.rows}


def test_runs_borrow_the_untrained_model_of_their_neighbours(tmp_path: Path) -> None:
    """Chance is 46 here (five classes, one more per task), zero-shot 60: ZO is at zero-shot."""
    found = rows(tmp_path, run("FO", 90.0, before=60.0, baseline=True), run("ZO", 60.0))
    assert found["ZO"].points("")[0].start == 60.0
    assert found["ZO"].idle
    assert not found["FO"].idle
    (chapter,) = build(read_records([tmp_path])[0]).chapters
    notes = {line.label: line.note for s in chapter.results.sections for line in s.lines}
    assert notes == {"FO": "baseline", "ZO": "learned nothing"}


def test_the_same_seed_is_borrowed_first_and_else_the_mean(tmp_path: Path) -> None:
    lenders = [run("FO", 90.0, seed, 30.0 + 10 * seed) for seed in (0, 1)]
    found = rows(tmp_path, *lenders, run("ZO", 80.0, 1), run("ZO", 80.0, 2))
    assert [point.start for point in found["ZO"].points("")] == [40.0, 35.0]


@pytest.mark.parametrize(
    "other",
    [{"model": "large"}, {"stream": {"name": "x"}}, {"inputs": {"model.weights": {"sha256": "1"}}}],
)
def test_another_model_or_stream_lends_nothing(tmp_path: Path, other: dict[str, Any]) -> None:
    found = rows(tmp_path, run("FO", 90.0, before=60.0), run("ZO", 62.0, **other))
    chance = 100 * sum(1 / k for k in range(1, TASKS + 1)) / TASKS
    assert found["ZO"].points("")[0].start == pytest.approx(chance)


def one(folder: Path, new: float, before: float) -> Record:
    save(folder, run("FO", new, before=before))
    return read_records([folder])[0][0]


def test_the_standard_error_is_that_of_all_test_examples_together(tmp_path: Path) -> None:
    error = standard_error(one(tmp_path, 60.0, 40.0), 60.0, 40.0)
    assert error == pytest.approx(100 * math.sqrt(0.25 / (TASKS * SIZE)))
    assert UntrainedModels().start(one(tmp_path / "more", 60.0, 40.0)) == 40.0


@pytest.mark.parametrize(("gain", "idle"), [(9.9, True), (10.1, False)])
@pytest.mark.parametrize("seeds", [1, 3])
def test_a_gain_within_two_standard_errors_is_none(
    tmp_path: Path, gain: float, idle: bool, seeds: int
) -> None:
    """Of 100 examples at one half: 5 points each. Three seeds have the same test data."""
    runs = [run("x", 50 + gain / 2, s, before=50 - gain / 2) for s in range(seeds)]
    assert rows(tmp_path, *runs)["x"].idle is idle


def test_most_seeds_must_have_learned(tmp_path: Path) -> None:
    """A mean gain of 20, but two of three seeds gained nothing."""
    runs = [run("x", new, s, before=40.0) for s, new in enumerate((39.0, 41.0, 100.0))]
    assert rows(tmp_path, *runs)["x"].idle


def test_own_problems_count_answers_where_batches_say_nothing(tmp_path: Path) -> None:
    """38.67 to 39.06 % of 512 answers is noise; without their number nothing is known of it."""
    content = run("x", 39.06, before=38.67, domain="own")
    assert not rows(tmp_path / "old", content)["x"].idle
    for task in content["result"]["tasks"]:
        task["answers"] = 512 // TASKS
    assert rows(tmp_path / "new", content)["x"].idle
