"""The report at equal learning: the sentence, the table, and models that learned nothing."""

import json
from pathlib import Path

import pytest

from report import made_up
from riselab.pages.page import markdown
from riselab.records.record import read_records, write_record
from riselab.report.builder import Report, build
from riselab.report.tables import costs


@pytest.fixture
def report(tmp_path: Path) -> Report:
    records, problems = read_records([made_up.swept_study(tmp_path)])
    assert not problems
    return build(records)


SENTENCE = "At equal learning (80.0 % on new tasks), gentle forgets 10.0 points, FO 20.0: 10.0 less"


def test_the_sentence_is_the_headline_everywhere(report: Report) -> None:
    (chapter,) = report.chapters
    assert chapter.headline.startswith(SENTENCE)
    first = report.page.parts[0]
    assert SENTENCE in repr(first)
    assert SENTENCE in report.plain()
    assert "gentle forgets 10.0 points" in markdown(report.page)


def test_the_table_has_every_method_and_says_it_in_words(report: Report) -> None:
    table = report.chapters[0].equal
    assert table is not None
    lines = {line.label: line for section in table.sections for line in section.lines}
    texts = [cell and cell.text for cell in lines["gentle"].cells]
    assert texts == ["forgets less", texts[1], "80.0", "10.0", "20.0", "1.99"]
    assert table.columns[-1].title == "Seconds", "no run of these kept anything"
    assert lines["gentle"].cells[1].order == pytest.approx(-10)
    assert lines["idle"].cells[0].text == "not compared: learned nothing"
    assert "idle (lr=0.5)" in table.notes[0]
    for text in (report.plain(), markdown(report.page)):
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


def test_the_worked_example_of_the_documentation_is_this_one(report: Report) -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    (frontier,) = report.chapters[0].frontiers
    assert f"> {SENTENCE}\n" in text
    for curve in frontier.found.curves.values():
        for setting in curve.settings[:1] if curve.name == "idle" else curve.settings:
            rate = setting.name.partition("=")[2].rstrip(")")
            line = f"| {curve.name} | {rate} | {setting.learned:g} | {setting.forgotten:g} |"
            assert line in text


def test_what_is_kept_stands_beside_the_data_where_records_say_it(tmp_path: Path) -> None:
    folder = made_up.swept_study(tmp_path)
    for path in folder.glob("*/record.json"):
        content = json.loads(path.read_text())
        if content["row"]["method"] == "gentle":
            content["result"] |= {"memory_bytes": [10**5, 2 * 10**6], "data_bytes": [0, 30_000]}
            write_record(path, made_up.finished(content))
    (chapter,) = build(read_records([folder])[0]).chapters
    for table, name in ((chapter.equal, "gentle"), (costs(chapter.experiment), "gentle (lr=0.2)")):
        assert table is not None
        places = [[c.title for c in table.columns].index(t) for t in ("MB kept", "MB of data")]
        shown = {line.label: [line.cells[k] for k in places] for line in table.lines}
        assert [cell and cell.text for cell in shown.pop(name)] == ["2.00", "0.03"]
        assert [None, None] in shown.values()


def test_the_second_level_is_in_the_middle_of_what_both_reach(report: Report) -> None:
    """FO reaches 70 to 90 and gentle 70 to 80: FO forgets (New - 60), gentle half of that."""
    table = report.chapters[0].halfway
    assert table is not None
    (line,) = table.lines  # the idle one has no learning in common
    assert [cell and cell.text for cell in line.cells[2:]] == ["75.0", "7.5", "15.0"]
    assert line.cells[1].order == pytest.approx(-7.5)
    assert "At less learning" in markdown(report.page)


def test_the_figure_has_a_band_for_every_curve_that_was_read(report: Report) -> None:
    figure = next(report.page.figures())
    bands = figure.spec()["datasets"]["bands"]
    assert {row["method"] for row in bands} == {"FO", "gentle"}
    assert "interval over seeds at the settings" in figure.note


def test_one_seed_is_called_one_seed_and_not_noise(tmp_path: Path) -> None:
    records, _ = read_records([made_up.swept_study(tmp_path)])
    report = build([record for record in records if record.seed == 0])
    (chapter,) = report.chapters
    assert chapter.headline.startswith("With one seed")
    assert chapter.equal is not None
    lines = {line.label: line for section in chapter.equal.sections for line in section.lines}
    assert "not judged: one seed" in [cell and cell.text for cell in lines["gentle"].cells]
    assert "not clearly different" not in report.plain()


def test_bands_take_three_seeds(tmp_path: Path) -> None:
    """With two, they are wide, and nothing where the seeds' lines cross: a bow tie."""
    records, _ = read_records([made_up.swept_study(tmp_path)])
    report = build([record for record in records if record.seed < 2])
    figure = next(report.page.figures())
    assert "bands" not in figure.spec()["datasets"]
    assert "Shaded" not in figure.note
