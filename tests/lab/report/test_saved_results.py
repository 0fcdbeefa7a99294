"""Saved diagnoses and local validations on the report's page, whatever they say inside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lab.report import made_up
from risegrad.cli import main
from risegrad.lab.report import saved_results
from risegrad.lab.report.builder import KINDS, SavedKind, SavedResult
from risegrad.pages.page import Paragraph, Part


class Weather:
    """A kind that only this test knows."""

    @staticmethod
    def from_dict(content: dict[str, Any]) -> str:
        return str(content["sky"]["colour"])


def weather_parts(colour: str) -> tuple[Part, ...]:
    first = Part("", (Paragraph(f"It was {colour}."),), "How is it?", f"The sky is {colour}.")
    return first, Part("More", (Paragraph("Nothing more."),))


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    weather = SavedKind(
        "Weather", frozenset({"sky", "wind"}), f"{__name__}:Weather", f"{__name__}:weather_parts"
    )
    monkeypatch.setattr(saved_results, "KINDS", [weather])


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.mark.usefixtures("kinds")
def test_a_saved_result_stands_beside_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up.save(tmp_path / "runs", *(made_up.record("FO", seed) for seed in range(2)))
    write(tmp_path / "runs" / "today.json", {"sky": {"colour": "<b>blue</b>"}, "wind": 3})
    write(tmp_path / "runs" / "other.json", {"nothing": "known"})
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(out)]) == 0
    said, err = capsys.readouterr()
    assert "Weather today: The sky is <b>blue</b>." in said
    assert err == "", "JSON of no known kind is passed over in a folder, as before"
    page = out.read_text()
    assert "<h2>Weather today</h2>" in page
    assert "<h2>Weather today: More</h2>" in page
    assert "The sky is &lt;b&gt;blue&lt;/b&gt;." in page
    assert "Weather today" in out.with_suffix(".md").read_text()


@pytest.mark.usefixtures("kinds")
def test_saved_results_alone_make_a_page(tmp_path: Path) -> None:
    path = write(tmp_path / "today.json", {"sky": {"colour": "grey"}, "wind": 3})
    out = tmp_path / "report.html"
    assert main(["report", str(path), "--out", str(out), "--quiet"]) == 0
    assert "The sky is grey." in out.read_text()


@pytest.mark.usefixtures("kinds")
def test_one_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up.save(tmp_path / "runs", made_up.record("FO", 0))
    write(tmp_path / "runs" / "bad.json", {"sky": None, "wind": 3})
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(out), "--quiet"]) == 0
    assert "bad.json" in capsys.readouterr().err
    assert "cannot be read as what it seems to be" in out.read_text()


RECORDS = Path(__file__).parents[3] / "experiments" / "records"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_kinds_name_what_is_there(kind: SavedKind) -> None:
    """And no kind takes the files of another, nor records."""
    assert saved_results._named(kind.reader).__name__
    assert callable(saved_results._named(kind.parts))
    assert all(word and meaning for word, meaning in saved_results._named(kind.glossary))
    files = [json.loads(path.read_text()) for path in RECORDS.glob("*/*.json")][:200]
    taken = {id(one) for one in files if kind.keys <= one.keys()}
    others = [other for other in KINDS if other is not kind]
    assert not any(o.keys <= f.keys() for o in others for f in files if id(f) in taken)
    assert not any("experiment" in f for f in files if id(f) in taken)


def words(page: str) -> dict[str, str]:
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))


def test_a_saved_diagnosis_brings_its_own_words(tmp_path: Path) -> None:
    """Alone it has no words of records; beside records, what means two things is told apart."""
    out = tmp_path / "report.html"
    saved = RECORDS / "diagnosis" / "banking77.json"
    assert main(["report", str(saved), "--out", str(out), "--quiet"]) == 0
    alone = words(out.read_text())
    assert {"damage", "deviation", "lambda_dir", "S", "C"} <= alone.keys()
    assert not {"Avg", "BWT", "FWT"} & alone.keys()
    assert alone["±"] == "one standard error of the estimate"
    runs = tmp_path / "runs"
    made_up.save(runs, made_up.record("FO"))
    assert main(["report", str(runs), str(saved), "--out", str(out), "--quiet"]) == 0
    both = words(out.read_text())
    assert {"Avg", "damage"} <= both.keys()
    assert both["±"] == "sample standard deviation over seeds"
    assert both["± (Diagnosis)"] == "one standard error of the estimate"


@pytest.mark.parametrize(
    ("name", "subject", "title"),
    [
        ("diagnosis", "my model", "Diagnosis: my model"),
        ("diagnosis", "", "Diagnosis"),
        ("t5", "", "Diagnosis t5"),
        ("t5", "my model", "Diagnosis t5: my model"),
    ],
)
def test_a_saved_result_is_titled_by_its_subject(name: str, subject: str, title: str) -> None:
    assert SavedResult("Diagnosis", Path(f"{name}.json"), (), subject).title == title
