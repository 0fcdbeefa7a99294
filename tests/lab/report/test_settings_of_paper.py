"""The paper's figures stand only beside runs in the paper's setting."""

from __future__ import annotations

from pathlib import Path

import pytest
from risegrad.lab.report.paper_settings import departures, setting

from lab.report.made_up import record, save, whole_study
from risegrad.continual.runs import read_config
from risegrad.lab.experiments import experiment_library
from risegrad.lab.experiments.experiment_file import load_experiment
from risegrad.lab.experiments.run_cells import RunCell, expand
from risegrad.lab.records.record import Identity, Record, Result, Run, read_records
from risegrad.lab.report.builder import build
from risegrad.lab.report.paper import find

AS_PRINTED = [
    name
    for name in experiment_library.experiments()
    if name.startswith("table") and "cpu" not in name
]


def differences(cell: RunCell) -> tuple[str, ...]:
    paper = cell.row.paper
    assert paper is not None
    found = Record(
        Path("record.json"), cell.id, Identity({}, {}), cell.experiment, cell.row, cell.seed,
        cell.config, Result((), {}, "", {}), Run(),
    )  # fmt: skip
    return departures(found, find(paper.table, paper.row, paper.column, cell.row.section))


def paper_cells(name: str, *overrides: str) -> list[RunCell]:
    cells = expand(load_experiment(name, ["seeds=[0]", *overrides]), read_config)
    return [cell for cell in cells if cell.row.paper]


@pytest.mark.parametrize("name", AS_PRINTED)
def test_the_files_of_the_tables_are_in_the_papers_setting(name: str) -> None:
    cells = paper_cells(name)
    assert cells
    assert {cell.row.label: differences(cell) for cell in cells if differences(cell)} == {}


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("table1-cifar100-inc5", "stream.name=cifar100-inc10", {"Inc-10"}),
        ("table1-cifar100-inc5", "stream.name=imagenet-r-inc5", {"stream imagenet-r-inc5"}),
        ("table1-cifar100-inc5", "stream.base=50", {"50 classes in the first session"}),
        ("table1-imagenet-r-inc5", "stream.classes=50", {"50 classes"}),
        ("table1-imagenet-r-inc5", "model.name=vit_small_patch16_224", {"vit_small_patch16_224"}),
        ("table1-imagenet-r-inc5", "loop.score_on=validation", {"scored on validation data"}),
        ("table3-imagenet-r-inc5", "stream.train_per_class=9", {"9 training images per class"}),
        ("table3-imagenet-r-inc5", "model.pretrained=false", {"no pretrained weights"}),
        ("table2-order1", "stream.name=order2", {"stream order2"}),
        ("table2-order1", 'stream.leave_out=["yahoo"]', {"without yahoo"}),
        ("table2-order3", "stream.train_size=9", {"9 training examples per task"}),
        ("table2-order3", "model.name=google/flan-t5-small", {"google/flan-t5-small"}),
    ],
)
def test_what_differs_is_said(name: str, change: str, expected: set[str]) -> None:
    for cell in paper_cells(name, change):
        assert set(differences(cell)) == expected, cell.row.label


def test_another_host_rule_or_query_count_is_said() -> None:
    (cell,) = [c for c in paper_cells("table1-cifar100-inc5") if c.row.label == "ZO-FC+RISE"]
    cell.config["host"]["name"], cell.config["rule"]["name"] = "ease", "fo"
    assert set(differences(cell)) == {"host ease", "rule fo"}
    cell = paper_cells("table3-imagenet-r-inc5")[0]
    cell.config["rule"]["q"] = 5
    assert differences(cell) == ("q = 5",)


def test_the_small_runs_of_the_project_stand_apart() -> None:
    for cell in paper_cells("table1-cpu"):
        found = differences(cell)
        assert {"Inc-10", "50 classes", "vit_small_patch14_dinov2"} <= set(found)


def test_runs_in_another_setting_get_a_table_with_a_heading(tmp_path: Path) -> None:
    whole_study(tmp_path, seeds=1)
    place = {"table": "1", "row": "EASE", "column": "CIFAR100 Inc-5"}
    ten = {"name": "cifar100-inc10", "increment": 10, "classes": 50}
    more = {"paper": place, "section": "FO Optimization", "host": "ease", "rule": "fo"}
    other = record("EASE", experiment="inc10", stream=ten, model="vit_small", **more)
    save(tmp_path, other)
    records, _ = read_records([tmp_path])
    report = build(records)
    same, apart, *_ = report.paper
    assert all("inc10" not in column.group for column in same.columns)
    assert apart.caption == (
        "Table 1 in another setting; the paper: CIFAR100 Inc-5, ViT-B/16; here (inc10): Inc-10, "
        "vit_small, 50 classes"
    )
    assert [column.group for column in apart.columns] == ["inc10"] * 3
    (chapter,) = [c for c in report.chapters if c.experiment.name == "inc10"]
    cells = [cell for s in chapter.results.sections for line in s.lines for cell in line.cells]
    assert not any(cell and cell.paper for cell in cells), "no figure of the paper beside it"
    assert "Not in the paper's setting (Inc-10, vit_small, 50 classes): EASE." in (
        chapter.results.notes
    )


def test_the_papers_setting_in_words() -> None:
    assert setting(find("2", "FO", "Standard CL Benchmark Order 1", "O-LoRA").table, 0) == (
        "Standard CL Benchmark Order 1, T5"
    )
