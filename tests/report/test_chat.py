"""Runs of a chat model: their own words and units, and what else the model could do."""

from pathlib import Path

import pytest

from report import made_up
from riselab.pages.page import html, markdown
from riselab.records.record import read_records
from riselab.report.builder import Chapter, Report, build


@pytest.fixture
def report(tmp_path: Path) -> Report:
    records, problems = read_records([made_up.chat_study(tmp_path)])
    assert not problems
    return build(records)


@pytest.fixture
def chapter(report: Report) -> Chapter:
    return report.chapters[0]


SENTENCE = (
    "At equal learning (80.0 % exact answers), keep drifts 0.130 nats per token, plain 1.600: "
    "1.470 less, 95 % interval 1."
)


def test_the_sentence_is_of_drift_in_nats(report: Report, chapter: Chapter) -> None:
    """keep is read between 66 (0.06 nats) and 82 (0.14): at 80 it is 0.13."""
    assert chapter.headline.startswith(SENTENCE)
    for text in (report.plain(), markdown(report.page), html(report.page)):
        assert SENTENCE in text
        assert "forgets" not in text.partition("<script>")[0].replace("Which method forgets", "")


def test_the_table_at_equal_learning_is_in_nats(chapter: Chapter) -> None:
    table = chapter.equal
    assert table is not None
    titles = [column.title for column in table.columns]
    assert titles == [
        "In words", "Difference", "at New", "Drift", "Drift of reference", "Seconds", "MB kept",
        "MB of data",
    ]  # fmt: skip
    texts = {line.label: [cell and cell.text for cell in line.cells] for line in table.lines}
    assert texts["keep"][0] == "drifts less"
    assert texts["keep"][2:5] + texts["keep"][6:] == ["80.0", "0.130", "1.600", "6.80", "0.01"]
    assert chapter.halfway is not None
    assert chapter.halfway.lines[0].cells[2].text == "44.0"  # between 8 and 80


def test_what_else_changed_is_read_at_the_same_learning(chapter: Chapter) -> None:
    """The loss on Wikipedia rises by a quarter of the drift here, and facts fall by 100 of it."""
    table = chapter.beside
    assert table is not None
    assert [column.title for column in table.columns] == [
        "at New", "Agree", "Wiki", "Choice", "Facts",
    ]  # fmt: skip
    lines = {line.label: [cell and cell.text for cell in line.cells] for line in table.lines}
    assert lines["plain"] == ["80.0", "60.0", "+0.400", "+0.00", "−160.00"]  # noqa: RUF001
    assert lines["keep"] == ["80.0", "96.8", "+0.033", "+0.00", "−13.00"]  # noqa: RUF001
    wiki = next(line for line in table.lines if line.label == "keep").cells[2]
    assert wiki is not None
    assert wiki.extra.startswith("[+0.0")


def test_every_setting_has_its_drift_and_abilities(chapter: Chapter) -> None:
    titles = [column.title for column in chapter.results.columns]
    assert titles == ["New", "NLL", "Drift", "Agree", "Wiki", "Choice", "Facts", "Seeds"]
    line = next(line for line in chapter.results.lines if line.label == "keep (lr=0.001)")
    assert [cell and cell.text for cell in line.cells[:3]] == ["66.00", "0.50", "0.060"]
    assert "in percent" not in chapter.results.caption


def test_the_figure_shows_ratios_of_drift(report: Report) -> None:
    figure = next(report.page.figures())
    assert figure.title == "Drift against learning"
    marks = figure.spec()["datasets"]["rows"]
    highest = next(row for row in marks if row["tip"].startswith("plain (lr=0.002)"))
    assert highest["y"] == pytest.approx(1.6)
    assert highest["tip"].endswith("drifts 1.600 ± 0.000 nats per token")
    bands = figure.spec()["datasets"]["bands"]
    assert max(row["high"] for row in bands) < 2.1
    assert len(list(report.page.figures())) == 1, "one task has no stream and no matrix"


def test_a_few_methods_have_a_figure_for_a_readme(chapter: Chapter) -> None:
    figure = chapter.small_figure(["plain", "keep"])
    assert figure is not None
    assert figure.small
    assert {row["method"] for row in figure.spec()["datasets"]["rows"]} == {"plain", "keep"}
    assert {row["name"] for row in figure.spec()["datasets"]["labels"]} == {"plain", "keep"}


def test_words_are_those_of_this_page(report: Report) -> None:
    spelled = dict(report.page.glossary)
    assert "nats per token" in spelled["Drift"]
    assert "Avg" not in spelled
