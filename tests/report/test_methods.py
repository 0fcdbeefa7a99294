"""Which rows are one curve, what it is called, and what stands at the top of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report.made_up import record, save
from riselab.pages.page import ChartFigure, Fold, Paragraph
from riselab.pages.tables import Table
from riselab.records.record import read_records
from riselab.report.builder import SINGLE, build
from riselab.report.methods import Method, methods


def swept(method: str, rate: float, seed: int = 0, **more: Any) -> dict[str, Any]:
    content = record(f"{method} (lr={rate})", seed, **more)
    content["config"]["adapter"] = {"lr": rate}
    content["row"] |= {"method": method, "swept": f"lr={rate}"}
    return content


def found(folder: Path, *contents: dict[str, Any]) -> list[Method]:
    save(folder, *contents)
    records, _ = read_records([folder])
    (chapter,) = build(records).chapters
    return methods(chapter.experiment)


def test_rows_of_a_sweep_are_one_method_in_the_order_of_what_was_swept(tmp_path: Path) -> None:
    """Records say where their row stood in the file as it was then; points are added later."""
    runs = [swept("FO", rate) for rate in (0.01, 0.3, 0.1)]
    for run, order in zip(runs, (2, 0, 1), strict=True):
        run["row"]["order"] = order
    (method,) = found(tmp_path, *runs)
    assert method.name == "FO"
    assert [row.label for row in method.rows] == [f"FO (lr={rate})" for rate in (0.01, 0.1, 0.3)]


def test_every_other_row_is_a_method(tmp_path: Path) -> None:
    runs = [record("q=1", q=1), record("q=4", q=4), swept("FO", 0.1), swept("FO", 0.3)]
    assert sorted(m.name for m in found(tmp_path, *runs)) == ["FO", "q=1", "q=4"]


def test_methods_of_one_name_are_told_apart_by_their_sections(tmp_path: Path) -> None:
    runs = [swept("FO", r, section=s, host=s) for s in ("A", "B") for r in (0.1, 0.3)]
    for content in runs:
        content["row"]["label"] += "" if content["row"]["section"] == "A" else " "
    assert [m.name for m in found(tmp_path, *runs)] == ["FO (A)", "FO (B)"]


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
