"""The report at equal learning: the sentence, the table, and models that learned nothing."""

from pathlib import Path
from typing import Any

import pytest
from risegrad.lab.report.latex_tables import latex
from risegrad.lab.report.markdown_tables import markdown
from risegrad.lab.report.terminal_tables import plain

from lab.report import made_up
from risegrad.lab.records.record import read_records
from risegrad.lab.report.builder import Report, build, report_page


@pytest.fixture
def report(tmp_path: Path) -> Report:
    records, problems = read_records([made_up.swept_study(tmp_path)])
    assert not problems
    return build(records)


SENTENCE = "At equal learning (80.0 % on new tasks), gentle forgets 10.0 points, FO 20.0: 10.0 less"


def test_the_sentence_is_the_headline_everywhere(report: Report) -> None:
    (chapter,) = report.chapters
    assert chapter.headline.startswith(SENTENCE)
    first = report_page(report).parts[0]
    assert SENTENCE in repr(first)
    assert SENTENCE in plain(report)
    assert "gentle forgets 10.0 points" in markdown(report)


def test_the_table_has_every_method_and_says_it_in_words(report: Report) -> None:
    table = report.chapters[0].equal
    assert table is not None
    lines = {line.label: line for section in table.sections for line in section.lines}
    texts = [cell and cell.text for cell in lines["gentle"].cells]
    assert texts == ["forgets less", texts[1], "80.00", "10.00", "20.00"]
    assert lines["gentle"].cells[1].order == pytest.approx(-10)
    assert lines["idle"].cells[0].text == "not compared: learned nothing"
    assert "idle (lr=0.5)" in table.notes[0]
    for text in (plain(report), markdown(report), latex(report)):
        assert "forgets less" in text
        assert "learned nothing" in text


def test_who_learned_nothing_is_pale_and_never_best(report: Report) -> None:
    (chapter,) = report.chapters
    lines = {line.label: line for s in chapter.results.sections for line in s.lines}
    idle = lines["idle (lr=0.5)"]
    assert idle.note == "learned nothing"
    assert {cell.rank for cell in idle.cells if cell} == {0}
    titles = [column.title for column in chapter.results.columns]
    fgt, new = titles.index("Fgt"), titles.index("New")
    assert {line.cells[fgt].rank for line in lines.values()} == {0}, "alone it names no best"
    assert lines["FO (lr=0.3)"].cells[new].rank == 1


def test_rows_of_a_sweep_are_one_method(report: Report) -> None:
    (chapter,) = report.chapters
    assert [(m.name, len(m.rows)) for m in chapter.methods] == [
        ("FO", 2),
        ("gentle", 2),
        ("idle", 2),
    ]
    assert chapter.methods[0].setting(chapter.methods[0].rows[0]) == "lr 0.1"


def test_the_worked_example_of_the_documentation_is_this_one(report: Report) -> None:
    text = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    (frontier,) = report.chapters[0].frontiers
    assert f"> {SENTENCE}\n" in text
    for curve in frontier.found.curves.values():
        for setting in curve.settings[:1] if curve.name == "idle" else curve.settings:
            rate = setting.name.partition("=")[2].rstrip(")")
            line = f"| {curve.name} | {rate} | {setting.learned:g} | {setting.forgotten:g} |"
            assert line in text
    learned = {name: frontier.found.curves[name].learned_at(10)[1] for name in ("FO", "gentle")}
    assert learned == pytest.approx({"FO": 70, "gentle": 80})
    assert "At an equal Fgt of 10, *FO* learns 70 and *gentle* 80" in text


def test_who_learned_nothing_is_best_of_nothing_in_the_papers_layout_too(tmp_path: Path) -> None:
    """A head near chance with Fgt 0 must not win the paper's column, nor a green card."""
    place = {"table": "1", "column": "CIFAR100 Inc-5"}
    stream = {"name": "cifar100-inc5", "increment": 5}
    papers: dict[str, Any] = {"model": "vit_base_patch16_224", "stream": stream}
    for seed in range(3):
        alive = papers | {"host": "ease", "rule": "fo", "baseline": True}
        alive |= {"section": "FO Optimization", "paper": place | {"row": "EASE"}}
        dead = papers | {"host": "zo-fc", "rule": "zo", "start": 4.0, "loss": 0.0}
        dead |= {"section": "ZO Optimization", "paper": place | {"row": "ZO-FC"}}
        made_up.save(tmp_path, made_up.record("EASE", seed, **alive))
        made_up.save(tmp_path, made_up.record("ZO-FC", seed, **dead))
    report = build(read_records([tmp_path])[0])
    for table in (*report.paper, report.chapters[0].results):
        lines = {line.label: line for s in table.sections for line in s.lines}
        assert "learned nothing" in lines["ZO-FC"].note
        assert {cell.rank for cell in lines["ZO-FC"].cells if cell} == {0}
    (chapter,) = report.chapters
    found = {finding.verdict: finding.sentences for finding in chapter.findings}
    assert found["better"] == found["worse"] == ()
    assert found["idle"][0].startswith("ZO-FC: ")
    assert "1 learned nothing" in chapter.headline
    for text in (plain(report), markdown(report), latex(report)):
        assert "learned nothing" in text


def test_the_other_readings_of_the_same_curves(report: Report) -> None:
    """The worked example: at an equal Fgt of 10, FO learns 70 and gentle 80."""
    table = report.chapters[0].other_ways
    assert table is not None
    lines = {line.label: line for section in table.sections for line in section.lines}
    texts = [cell and cell.text for cell in lines["gentle"].cells]
    assert texts[:3] == ["10.00", "80.00", "70.00"]
    assert lines["gentle"].cells[3].order == pytest.approx(10)
    assert texts[4:6] == ["50.00", "lr=0.2"]
    assert lines["FO"].cells[:4] == (None,) * 4, "the reference is not compared with itself"
    assert lines["idle"].note == "learned nothing"
    assert lines["idle"].cells == (None,) * 7


def test_the_figure_has_a_band_for_every_curve_that_was_read(report: Report) -> None:
    figure = next(report_page(report).figures())
    bands = figure.spec()["datasets"]["bands"]
    assert {row["method"] for row in bands} == {"FO", "gentle"}
    assert "interval over seeds along each curve" in figure.note


def test_one_seed_is_called_one_seed_and_not_noise(tmp_path: Path) -> None:
    records, _ = read_records([made_up.swept_study(tmp_path)])
    report = build([record for record in records if record.seed == 0])
    (chapter,) = report.chapters
    assert chapter.headline.startswith("One seed only")
    assert chapter.equal is not None
    lines = {line.label: line for section in chapter.equal.sections for line in section.lines}
    assert "not judged: one seed" in [cell and cell.text for cell in lines["gentle"].cells]
    assert "not clearly different" not in plain(report)
