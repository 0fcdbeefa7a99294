"""Settings chosen on validation data: the runs that decided are told apart from results."""

from pathlib import Path
from typing import Any

import pytest

from report import made_up
from riselab.pages.page import html, markdown
from riselab.records.record import read_records
from riselab.report.builder import Report, build
from riselab.report.tables import AVG, choice_table

BY = "validation:avg"
SCORES = {("FO", 0.1): 50.0, ("FO", 0.3): 70.0, ("RISE", 0.1): 60.0, ("RISE", 0.3): 55.0}


def run(method: str, rate: float, seed: int, avg: float, **row: Any) -> dict[str, Any]:
    """A run at one rate; ``row`` says whether it decides or was chosen."""
    decides = ", validation" if "decides" in row else ""
    label = f"{method} (lr={rate}){decides}"
    content = made_up.record(label, seed, experiment="chosen", baseline=method == "FO")
    content["row"] |= {"method": method, "swept": f"lr={rate}"} | row
    content["config"]["adapter"] = {"lr": rate}
    content["config"]["loop"] = {"score_on": "validation" if decides else "test"}
    content["config"]["rule"] = {"name": method.lower()}
    content["result"]["metrics"]["avg"] = avg + seed
    return content


def deciding() -> list[dict[str, Any]]:
    return [run(*of, s, avg, decides=BY) for of, avg in SCORES.items() for s in range(2)]


@pytest.fixture
def report(tmp_path: Path) -> Report:
    tested = [run("FO", 0.3, s, 40.0, chosen_by=BY) for s in range(2)]
    tested += [run("RISE", 0.1, s, 45.0, chosen_by=BY) for s in range(2)]
    stale = run("RISE", 0.3, 0, 99.0, chosen_by=BY)
    made_up.save(tmp_path, *deciding(), *tested, stale)
    return build(read_records([tmp_path])[0])


def test_only_test_runs_at_the_chosen_settings_are_results(report: Report) -> None:
    (chapter,) = report.chapters
    assert [row.label for row in chapter.experiment.rows] == ["FO (lr=0.3)", "RISE (lr=0.1)"]
    found = [row.spread(AVG.of) for row in chapter.experiment.rows]
    assert [estimate.mean for estimate in found if estimate] == [40.5, 45.5]
    (remark,) = [text for text in report.remarks if "left out" in text]
    assert "because lr=0.1 is chosen now" in remark


def test_what_was_chosen_and_by_what_is_said_everywhere(report: Report) -> None:
    said = "chosen by average accuracy on validation data"
    for text in (report.plain(), markdown(report.page), html(report.page)):
        assert said in text
        assert "FO lr=0.3 (70.5)" in text
        assert "RISE lr=0.1 (60.5)" in text
    assert "Choice of settings in chosen" in markdown(report.page)


def test_the_figures_that_decided_have_a_table_of_their_own(report: Report) -> None:
    table = choice_table(report.chapters[0].experiment)
    assert table is not None
    found = {
        (section.title.partition(",")[0], line.label): (line.cells[0], line.cells[2])
        for section in table.sections
        for line in section.lines
    }
    assert {of: value.order for of, (value, _) in found.items() if value} == {
        (method, f"lr={rate}"): avg + 0.5 for (method, rate), avg in SCORES.items()
    }
    chosen = {of for of, (_, words) in found.items() if words and words.text == "chosen"}
    assert chosen == {("FO", "lr=0.3"), ("RISE", "lr=0.1")}


def test_before_the_first_test_run_the_page_says_that_there_is_none(tmp_path: Path) -> None:
    made_up.save(tmp_path, *deciding())
    report = build(read_records([tmp_path])[0])
    assert report.remarks[0] == "chosen: all runs are on validation data, none on test data yet"
    assert "on test data yet" in html(report.page)
