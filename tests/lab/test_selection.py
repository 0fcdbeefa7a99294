"""``select``: chosen on validation data, reported on test data, in one experiment and command."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from riselab.experiments.cells import expand
from riselab.experiments.file import Choice, load_experiment
from riselab.records.record import read_records

from . import fake_workload
from .conftest import cells_of, rise

Write = Callable[..., Path]
Capture = pytest.CaptureFixture[str]

TEXT = """
name = "chosen"
domain = "counting"
seeds = [0, 1]
select = "validation:avg"
[sweep]
host.lr = [3, 1, 2]
[[rows]]
label = "FO"
baseline = true
[[rows]]
label = "RISE"
rule = { q = 4 }
"""


def test_every_point_decides_and_nothing_else_runs_before(write: Write) -> None:
    cells = cells_of(write(TEXT))
    assert [(c.row.label, c.row.swept) for c in cells[::2]] == [
        (f"{method} (lr={lr}), validation", f"lr={lr}")
        for method in ("FO", "RISE") for lr in (3, 1, 2)
    ]  # fmt: skip
    assert {cell.config["loop"]["score_on"] for cell in cells} == {"validation"}
    assert {cell.row.decides for cell in cells} == {"validation:avg"}


def test_what_is_chosen_runs_on_test_data_as_if_it_stood_in_the_file(write: Write) -> None:
    experiment = load_experiment(write(TEXT))
    cells = expand(experiment, fake_workload.read_config, lambda row: row.swept == "lr=1")
    tests = [cell for cell in cells if not cell.row.decides]
    assert [c.row.label for c in tests[::2]] == ["FO (lr=1)", "RISE (lr=1)"]
    assert {c.row.chosen_by for c in tests} == {"validation:avg"}
    plain = TEXT.replace('select = "validation:avg"\n', "").replace("[3, 1, 2]", "[1]")
    assert {c.id for c in tests} == {c.id for c in cells_of(write(plain))}


@pytest.mark.parametrize("reporting", [[0, 1], [2]])
def test_other_seeds_may_choose(reporting: list[int], write: Write) -> None:
    path = write(TEXT.replace("[sweep]", "select_seeds = [1]\n[sweep]"))
    experiment = load_experiment(path, [f"seeds={reporting}"])
    cells = expand(experiment, fake_workload.read_config, lambda row: row.swept == "lr=1")
    assert {cell.seed for cell in cells if cell.row.decides} == {1}
    assert {cell.seed for cell in cells if not cell.row.decides} == {*reporting}


def test_the_least_forgetting_among_those_that_learn_enough() -> None:
    learned = {"a": {0: 70.0}, "b": {0: 80.0}, "c": {0: 90.0}}
    forgets = {"a": {0: 1.0}, "b": {0: 5.0}, "c": {0: 9.0}}
    for bound, setting in ((60, "a"), (75, "b"), (85.5, "c"), (95, "c")):
        by = f"validation:forgetting where avg >= {bound}"
        assert Choice("", "m", by, forgets, learned).setting == setting
    assert Choice("", "m", "validation:avg", learned).setting == "c"


def test_a_row_may_report_all_its_points(write: Write) -> None:
    cells = cells_of(write(TEXT.replace("baseline = true", 'baseline = true\nselect = ""')))
    assert {c.row.method for c in cells if c.row.decides} == {"RISE"}
    reported = {c.row.label for c in cells if not c.row.decides}
    assert reported == {f"FO (lr={lr})" for lr in (1, 2, 3)}
    with pytest.raises(ValueError, match=r"select must be one of .* >= NUMBER, got 'validation:f"):
        load_experiment(write(TEXT.replace("validation:avg", "validation:forgetting")))


def test_names_with_commas_can_be_told_apart(write: Write, capsys: Capture) -> None:
    assert rise("show", write(TEXT), "--only", "informed") == 2
    said = 'There are FO, "FO (lr=3), validation", "FO (lr=1), validation", '
    assert said in capsys.readouterr().err


def test_one_command_chooses_and_reports(write: Write, tmp_path: Path, capsys: Capture) -> None:
    path, out = write(TEXT), tmp_path / "out"
    assert rise("show", path, "--out", out) == 0
    assert "chosen by average accuracy on validation data: nothing yet" in capsys.readouterr().out
    assert rise("run", path, "--out", out) == 0
    said = capsys.readouterr().out
    assert "12 of 12 runs done" in said
    assert (
        "chosen by average accuracy on validation data:\nFO lr=1 (90.0)\nRISE lr=1 (90.0)" in said
    )
    assert "4 of 4 runs done" in said
    assert said.count("'rise report ") == 1
    records, _ = read_records([out])
    tested = [record for record in records if record.setting("loop", "score_on") == "test"]
    assert {(r.row.label, r.row.chosen_by, r.row.decides) for r in tested} == {
        ("FO (lr=1)", "validation:avg", ""), ("RISE (lr=1)", "validation:avg", ""),
    }  # fmt: skip
    assert (len(records), len(tested)) == (16, 4)
    assert rise("show", path, "--out", out, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(c["method"], c["setting"]) for c in shown["chosen"]] == [
        ("FO", "lr=1"), ("RISE", "lr=1"),
    ]  # fmt: skip
    assert {run["state"] for run in shown["runs"]} == {"done"}
    assert len(shown["runs"]) == 16


def test_a_method_that_lacks_a_deciding_run_waits(
    write: Write, tmp_path: Path, capsys: Capture
) -> None:
    text = TEXT.replace('label = "RISE"\n', 'label = "RISE"\nhost = { name = "fails" }\n')
    assert rise("run", write(text), "--out", tmp_path / "out") == 1
    said = capsys.readouterr().out
    assert "data:\nFO lr=1 (90.0)\n" in said
    assert "RISE lr=" not in said
    assert "2 of 2 runs done" in said


def test_only_chooses_among_the_methods_that_ran(
    write: Write, tmp_path: Path, capsys: Capture
) -> None:
    path, out = write(TEXT), tmp_path / "out"
    assert rise("run", path, "--out", out, "--only", "RISE") == 0
    said = capsys.readouterr().out
    assert "6 of 6 runs done" in said
    assert "2 of 2 runs done" in said
    assert "FO" not in said


def test_settings_are_compared_over_the_seeds_that_all_have() -> None:
    lucky = Choice("", "FO", "validation:avg", {"lr=1": {0: 50.0, 1: 60.0}, "lr=2": {1: 59.0}})
    assert lucky.seeds == (1,)
    assert lucky.setting == "lr=1", "by the mean of all seeds lr=2 would be chosen"
    none = Choice("", "FO", "validation:avg", {"lr=1": {0: 50.0}, "lr=2": {1: 59.0}})
    assert none.setting is None
    assert "nothing chosen" in none.sentence
    equal = Choice("", "FO", "validation:avg", {"lr=2": {0: 5.0}, "lr=1": {0: 5.0}})
    assert equal.setting == "lr=2", "of equals the first"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"validation:avg"', '"test:avg"', "select must be one of validation:avg, validation:last"),
        ('"validation:avg"', '"validation:forgetting"', "select must be one of"),
        ("[sweep]\nhost.lr = [3, 1, 2]\n", "", "must be a row with a sweep"),
        ('"RISE"', '"RISE"\nbaseline = true', "has several baselines"),
        ("domain", 'question = "Why"\ndomain', "question must be one line that ends with '[?]'"),
    ],
)
def test_what_cannot_select_is_refused(before: str, after: str, message: str, write: Write) -> None:
    with pytest.raises(ValueError, match=message):
        load_experiment(write(TEXT.replace(before, after)))
