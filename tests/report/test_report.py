"""Rows, differences, words and tables, as data."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from report.made_up import record, save
from riselab.pages.page import html
from riselab.pages.tables import Column, Line, Section, Table, TableCell, ranked
from riselab.records.record import read_records
from riselab.report.builder import Chapter, Report, build
from riselab.report.tables import costs


def built(folder: Path, *contents: dict[str, Any], baseline: str | None = None) -> Report:
    save(folder, *contents)
    records, problems = read_records([folder])
    return build(records, problems, baseline)


def only(report: Report) -> Chapter:
    (chapter,) = report.chapters
    return chapter


def with_metric(label: str, seed: int, value: float | None, **more: Any) -> dict[str, Any]:
    content = record(label, seed, **more)
    content["result"]["metrics"] = {"last": value}
    return content


def cells(table: Table) -> dict[str, tuple[TableCell | None, ...]]:
    return {line.label: line.cells for section in table.sections for line in section.lines}


def test_runs_that_differ_in_the_seed_share_a_row(tmp_path: Path) -> None:
    values = [70.0, 71.0, 75.0]
    report = built(tmp_path, *(with_metric("FO", seed, v) for seed, v in enumerate(values)))
    last, seeds = cells(only(report).results)["FO"]
    assert last == TableCell("72.00", "± 2.65", order=72.0)
    assert seeds == TableCell("3", order=3)
    assert report.remarks == ()


def test_one_seed_has_no_deviation_and_null_no_figure(tmp_path: Path) -> None:
    report = built(tmp_path, with_metric("FO", 0, 70.0), with_metric("ZO", 0, None))
    assert cells(only(report).results)["FO"][0] == TableCell("70.00", order=70.0)
    assert cells(only(report).results)["ZO"][0] is None


def test_the_same_label_with_another_configuration_is_another_row(tmp_path: Path) -> None:
    runs = [record("RISE", seed, q=q) for seed in (0, 1) for q in (4, 16)]
    report = built(tmp_path, *runs)
    labels = [row.label for row in only(report).experiment.rows]
    assert labels == ["RISE, rule.q=4", "RISE, rule.q=16"]
    assert "differ in rule.q, not only in the seed" in report.remarks[0]


def test_the_same_run_twice_counts_once(tmp_path: Path) -> None:
    later = record("FO", 0)
    later["run"] = later["run"] | {"finished": "2027-01-01T00:00:00+00:00"}
    report = built(tmp_path, record("FO", 0), later)
    (row,) = only(report).experiment.rows
    assert [run.run.finished[:4] for run in row.runs] == ["2027"]
    assert "the same run as" in report.remarks[0]


def test_rows_stand_in_the_order_of_the_paper_then_of_their_names(tmp_path: Path) -> None:
    column = "CIFAR100 Inc-5"
    zo = {"section": "ZO Optimization"}
    report = built(
        tmp_path,
        record("RISE q=16", **zo),
        record("RISE q=4", **zo),
        record("mine", paper={"table": "1", "row": "ZO-FC+RISE", "column": column}, **zo),
        record("base", paper={"table": "1", "row": "ZO-FC", "column": column}, **zo),
        record("EASE", section="FO Optimization"),
        record("zzz", section="Another"),
    )
    labels = [row.label for row in only(report).experiment.rows]
    assert labels == ["EASE", "base", "mine", "RISE q=4", "RISE q=16", "zzz"]


def test_rows_without_a_place_in_the_paper_stand_as_in_their_file(tmp_path: Path) -> None:
    made = [record(label) for label in ("b", "c", "a")]
    for order, content in enumerate(made):
        content["row"]["order"] = order
    report = built(tmp_path, *made)
    assert [row.label for row in only(report).experiment.rows] == ["b", "c", "a"]


def test_a_place_that_the_paper_does_not_have_is_said(tmp_path: Path) -> None:
    report = built(tmp_path, record(paper={"table": "1", "row": "L2P", "column": "x"}))
    assert "row.paper: Table 1 has no single row 'L2P'" in report.remarks[0]


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    ours, theirs = {0: 71.0, 1: 73.0, 2: 74.5, 7: 1.0}, {0: 70.0, 1: 71.5, 2: 74.0, 8: 99.0}
    report = built(
        tmp_path,
        *(with_metric("RISE", seed, value) for seed, value in ours.items()),
        *(with_metric("FO", seed, value, baseline=True) for seed, value in theirs.items()),
    )
    (found,) = only(report).differences
    pairs = np.array([ours[seed] - theirs[seed] for seed in (0, 1, 2)])
    low, high = stats.t.interval(0.95, 2, pairs.mean(), stats.sem(pairs))
    assert found.gain is not None
    assert found.gain.n == 3
    assert found.gain.mean == pytest.approx(1.0)
    assert (found.gain.low, found.gain.high) == pytest.approx((low, high))
    assert found.verdict == "open"


@pytest.mark.parametrize(
    ("metric", "step", "verdict"),
    [("last", 5, "better"), ("last", -5, "worse"), ("forgetting", 5, "worse")],
)
def test_the_words_say_which_differences_are_clear(
    tmp_path: Path, metric: str, step: float, verdict: str
) -> None:
    contents = []
    for seed, wiggle in enumerate((0.0, 0.1, -0.1)):
        for label, value in (("FO", 50.0), ("RISE", 50 + step + wiggle)):
            content = record(label, seed, baseline=label == "FO")
            content["result"]["metrics"] = {metric: value, "avg": 10 + wiggle * (label == "FO")}
            contents.append(content)
    chapter = only(built(tmp_path, *contents))
    assert {d.metric.key: d.verdict for d in chapter.differences} == {
        metric: verdict,
        "avg": "open",
    }


def test_words_of_differences_are_corrected_for_the_number_of_rows(tmp_path: Path) -> None:
    """Beside seven that do not differ, one that just excludes zero is not called better."""
    rows = {"FO": 0.0, "RISE": 1.0} | {f"row {k}": 0.0 for k in range(7)}
    beside = {0: -0.3, 1: 0.0, 2: 0.3}
    contents = [
        with_metric(label, seed, 50 + gain + beside[seed] * (label != "FO"), baseline=label == "FO")
        for label, gain in rows.items()
        for seed in beside
    ]
    found = {d.row.label: d for d in only(built(tmp_path / "many", *contents)).differences}
    assert found["RISE"].gain is not None
    assert found["RISE"].gain.excludes_zero
    assert found["RISE"].verdict == "open"
    two = [content for content in contents if content["row"]["label"] in ("FO", "RISE")]
    (alone,) = only(built(tmp_path / "two", *two)).differences
    assert alone.verdict == "better"


def test_one_common_seed_has_no_interval_and_none_has_no_difference(tmp_path: Path) -> None:
    report = built(
        tmp_path,
        with_metric("FO", 0, 70.0, baseline=True),
        with_metric("RISE", 0, 71.0),
        with_metric("ZO", 5, 71.0),
    )
    found = {d.row.label: d for d in only(report).differences}
    assert [d.verdict for d in found.values()] == [""] * 2
    assert found["RISE"].gain is not None
    assert (found["RISE"].gain.mean, found["RISE"].gain.low) == (1.0, None)
    assert found["ZO"].gain is None


def test_a_chosen_baseline_replaces_the_marked_one(tmp_path: Path) -> None:
    runs = [record(label, 0, baseline=label == "FO") for label in ("FO", "ZO", "RISE")]
    report = built(tmp_path, *runs, record("RISE", 0, experiment="other"), baseline="ZO")
    assert {d.baseline.label for d in report.chapters[0].differences} == {"ZO"}
    assert report.remarks == ("other has no row 'ZO'; its own baseline is used, if it marks one",)


def test_each_section_has_its_own_baseline(tmp_path: Path) -> None:
    runs = [
        record(f"{host} {kind}", 0, section=host, baseline=kind == "FO")
        for host in ("SeqLoRA", "O-LoRA")
        for kind in ("FO", "RISE")
    ]
    pairs = {(d.row.label, d.baseline.label) for d in only(built(tmp_path, *runs)).differences}
    assert pairs == {("SeqLoRA RISE", "SeqLoRA FO"), ("O-LoRA RISE", "O-LoRA FO")}


def test_rows_without_a_single_baseline_are_not_compared(tmp_path: Path) -> None:
    marked = [record(label, 0, baseline=label != "C", section="s") for label in ("A", "B", "C")]
    assert only(built(tmp_path, *marked)).differences == []


def test_overheads_are_relative_to_the_baseline_at_the_same_seed(tmp_path: Path) -> None:
    contents = []
    for seed, base in enumerate((1.0, 2.0, 4.0)):
        for label, factor in (("FO", 1.0), ("RISE", 1.5)):
            content = record(label, seed, baseline=label == "FO")
            content["run"]["seconds"]["train"] = [base * factor, 3 * base * factor, None]
            content["run"]["resumed"] = int(label == "FO" and seed == 0)
            contents.append(content)
    table = costs(only(built(tmp_path, *contents)).experiment)
    assert table is not None
    seconds, ratio, *_ = cells(table)["RISE"]
    assert seconds is not None
    assert ratio == TableCell("1.50", "[1.50, 1.50]", order=1.5)
    assert seconds.order == pytest.approx(np.mean([3.0, 6.0, 12.0]))
    assert "1 of 6 runs had been interrupted" in table.notes[1]


def test_the_best_and_the_second_are_marked_whoever_they_are() -> None:
    values = [3.0, 1.0, 2.004, 2.001, None]
    lines = tuple(
        Line(str(v), (None if v is None else TableCell(str(v), order=v),) * 3) for v in values
    )
    columns = (Column("up", better=1), Column("down", better=-1), Column("neither"))
    table = ranked(Table("", "", columns, (Section("a", lines[:2]), Section("b", lines[2:]))))
    found = [
        [c.rank for c in (line.cells[i] for s in table.sections for line in s.lines) if c]
        for i in range(3)
    ]
    assert found == [[1, 0, 2, 2], [0, 1, 2, 2], [0, 0, 0, 0]]


def test_the_papers_figure_stands_beside_ours_with_both_settings(tmp_path: Path) -> None:
    place = {"table": "1", "row": "EASE", "column": "CIFAR100 Inc-5"}
    stream = {"name": "cifar100-inc10", "increment": 10, "classes": 50}
    more = {"section": "FO Optimization", "model": "vit_small"}
    table = only(
        built(tmp_path, record("EASE", paper=place, stream=stream, **more), record("mine", **more))
    ).results
    assert [cell and cell.paper for cell in cells(table)["EASE"][:4]] == [
        "91.13",
        "85.45",
        "7.05",
        "",
    ]
    assert not any(cell and cell.paper for cell in cells(table)["mine"])
    assert table.notes == (
        "“paper”: its own runs, Table 1, CIFAR100 Inc-5, ViT-B/16. These runs: cifar100-inc10, "
        "vit_small. The figures can be compared as far as the settings agree.",
    )


def test_scores_among_labels_stand_beside_the_others(tmp_path: Path) -> None:
    content = record("FO", 0, domain="language", tasks=2)
    content["result"]["metrics"] |= {"constrained_avg": 75.0, "constrained_forgetting": 20.0}
    results = only(built(tmp_path, content)).results
    found = {c.title: cell for c, cell in zip(results.columns, cells(results)["FO"], strict=True)}
    assert [found[f"{title} (labels)"].text for title in ("Avg", "Fgt")] == ["75.00", "20.00"]


def test_what_was_known_before_the_stream_stands_above_the_matrix(tmp_path: Path) -> None:
    content = record("FO", 0, tasks=2)
    content["result"]["before"] = {"accuracy": [40.0, 60.0]}
    content["result"]["metrics"]["forward_transfer"] = 3.0
    report = built(tmp_path, content)
    assert "FWT" in [column.title for column in only(report).results.columns]
    assert re.search(r">nothing<.*?40\.00.*?60\.00", html(report.page), re.DOTALL)


def test_plain_text_for_a_terminal(tmp_path: Path) -> None:
    report = built(
        tmp_path,
        *(with_metric("FO", seed, 70.0 + seed) for seed in range(2)),
        with_metric("x" * 60, 0, 1.0),
    )
    lines = report.plain().splitlines()
    assert lines[1].split() == ["Method", "Last↑", "Seeds"]
    assert lines[2].split() == ["FO", "70.50", "±", "0.71", "2"]
    assert lines[3].startswith("x" * 39 + "…")


@pytest.mark.parametrize("tasks", [1, 2, 25])
def test_a_page_can_be_made_of_very_little(tmp_path: Path, tasks: int) -> None:
    """No union, no metrics, no times: what is not there is not shown."""
    bare = record("FO", 0, tasks=tasks)
    bare["result"]["metrics"] = {}
    bare["result"]["scores"]["accuracy"]["union"] = []
    bare["run"] = {}
    empty = record("y" * 5000, 0)
    empty["result"]["scores"]["accuracy"] = {"matrix": [[None]] * 5, "union": []}
    text = html(built(tmp_path, bare, empty, record("RISE", 1, tasks=tasks)).page)
    # The frontier of one row; of several tasks also the stream and the matrices.
    assert text.count('class="plot"') == (1 if tasks == 1 else 3)
    ours = text[: text.index("<script>")]  # behind it is the library, which knows the word
    assert not re.search(r"\bnan\b", ours, flags=re.IGNORECASE)
