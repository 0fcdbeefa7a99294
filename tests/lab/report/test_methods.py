"""Which rows are one curve, what it is called, and what stands at the top of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.report.made_up import HOSTILE, record, save
from riselab.pages.page import ChartFigure, Fold, Paragraph
from riselab.pages.tables import Table
from riselab.records.record import read_records
from riselab.report.builder import SINGLE, build
from riselab.report.methods import Method, methods


def swept(label: str, rate: Any, seed: int = 0, **more: Any) -> dict[str, Any]:
    content = record(label, seed, **more)
    content["config"]["adapter"] = {"lr": rate, "optimizer": more.get("optimizer", "adamw")}
    content["id"] = f"{more.get('section', '')}{label}-{rate}-{seed}".replace("/", "")[:60]
    return content


def found(folder: Path, *contents: dict[str, Any]) -> list[Method]:
    save(folder, *contents)
    records, _ = read_records([folder])
    (chapter,) = build(records).chapters
    return methods(chapter.experiment)


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        (("FO, rate 0.1", "FO, rate 0.03"), "FO"),
        (("FO lr=0.1", "FO lr=0.03"), "FO"),
        (("RISE, blocks of 64, lr=0.1", "RISE, blocks of 64, lr=0.03"), "RISE, blocks of 64"),
        (("RISE (rule.q=1)", "RISE (rule.q=4)"), "RISE"),
        (("lr=0.1", "lr=0.03"), "rise"),
        (("one", "two"), "rise"),
    ],
)
def test_rows_that_differ_in_their_rate_are_one_method(
    tmp_path: Path, labels: tuple[str, str], name: str
) -> None:
    (method,) = found(tmp_path, swept(labels[0], 0.1), swept(labels[1], 0.03))
    assert method.name == name
    assert [row.label for row in method.rows] == [labels[1], labels[0]]  # in the order of rates
    assert [method.setting(row) for row in method.rows] == ["lr 0.03", "lr 0.1"]


def test_points_that_were_added_to_a_sweep_stand_in_their_place(tmp_path: Path) -> None:
    """Records of before say where their row stood in the file as it was then."""
    runs = [swept(f"FO (lr={rate})", rate) for rate in (0.01, 0.03, 0.1)]
    for run, order, rate in zip(runs, (2, 0, 1), (0.01, 0.03, 0.1), strict=True):
        run["row"] |= {"order": order, "method": "FO", "swept": f"lr={rate}"}
    (method,) = found(tmp_path, *runs)
    assert [method.setting(row) for row in method.rows] == ["lr 0.01", "lr 0.03", "lr 0.1"]


def test_another_setting_is_another_method(tmp_path: Path) -> None:
    runs = [swept(f"FO {o} lr={r}", r, optimizer=o) for o in ("adamw", "sgd") for r in (0.1, 0.3)]
    assert [m.name for m in found(tmp_path, *runs)] == ["FO adamw", "FO sgd"]


def test_rows_with_the_same_knobs_stay_apart(tmp_path: Path) -> None:
    assert [m.name for m in found(tmp_path, swept("a", 0.1), swept("b", 0.1))] == ["a", "b"]


def test_methods_of_one_name_are_told_apart_by_their_sections(tmp_path: Path) -> None:
    runs = [swept(f"FO lr={r}", r, section=s, host=s) for s in ("A", "B") for r in (0.1, 0.3)]
    for content in runs:
        content["row"]["label"] += "" if content["row"]["section"] == "A" else " "
    assert [m.name for m in found(tmp_path, *runs)] == ["FO (A)", "FO (B)"]


def test_odd_values_of_a_knob_do_no_harm(tmp_path: Path) -> None:
    odd = [swept(f"x{k}", value) for k, value in enumerate((HOSTILE, [1], None, True, 10**400))]
    assert len(found(tmp_path, *odd, swept("y", 0.1))) >= 1


def page_of(folder: Path, *contents: dict[str, Any]) -> Any:
    save(folder, *contents)
    records, _ = read_records([folder])
    return build(records).page


def test_the_page_goes_from_the_finding_to_the_details(tmp_path: Path) -> None:
    runs = [record(label, s, baseline=label == "FO") for label in ("FO", "RISE") for s in range(3)]
    page = page_of(tmp_path, *runs)
    first, *others = page.parts
    assert first.question
    assert first.finding == SINGLE
    assert [type(block) for block in first.blocks] == [ChartFigure, Table, Paragraph]
    # Title and question are those of the experiment's own file.
    assert page.title == "Digits, class by class, on a small transformer"
    assert first.question.startswith("With every rule at the rate that validation data choose")
    details = next(part for part in others if part.title.startswith("Details"))
    assert all(isinstance(block, Fold) for block in details.blocks)
    said = first.blocks[0].in_short
    assert "Fgt: points lost since." in said
    assert "FO: AdamW or SGD as usual." in said
    assert "ZO" not in said  # no row of this name
    spelled = {word for word, _ in page.glossary}
    assert {"Avg", "Last", "Fgt", "New", "FO", "ZO"} <= spelled


def test_who_learned_nothing_is_neither_better_nor_worse(tmp_path: Path) -> None:
    runs = [record("FO", s, baseline=True) for s in range(3)]
    runs += [record("dead", s, start=4.0, loss=0.0) for s in range(3)]
    save(tmp_path, *runs)
    (chapter,) = build(read_records([tmp_path])[0]).chapters
    assert {d.verdict for d in chapter.differences} == {""}
    assert chapter.headline == SINGLE


def test_less_forgetting_with_less_learning_is_no_gain(tmp_path: Path) -> None:
    """Every smaller step does that."""
    runs = [record("FO", s, baseline=True, start=90.0, loss=5.0) for s in range(3)]
    runs += [record("timid", s, start=60.0, loss=1.0) for s in range(3)]
    runs += [record("keeps", s, start=94.0, loss=1.0) for s in range(3)]
    save(tmp_path, *runs)
    (chapter,) = build(read_records([tmp_path])[0]).chapters
    forgetting = [d for d in chapter.differences if d.metric.key == "forgetting"]
    verdicts = {d.row.label: d.verdict for d in forgetting}
    assert verdicts == {"timid": "", "keeps": "better"}
