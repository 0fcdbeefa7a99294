"""The lab from Python: the same runs, as data frames, frontier and report."""

import io
from pathlib import Path

import pytest

import riselab as lab
from report.made_up import record, save
from riselab.frontier.equal_learning import Frontier
from riselab.running import progress, worker
from riselab.running.schedule import Tally

from .conftest import cells_of, rise
from .test_run import with_host
from .test_selection import TEXT as SELECTING


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "WORKLOAD", "lab.fake_workload")


@pytest.fixture
def results(small: Path, tmp_path: Path) -> lab.LabResults:
    return lab.run(small, seeds=[0, 5], only="FO", out=tmp_path / "out", settings={"loop.steps": 2})


def test_runs_are_those_of_the_command(
    results: lab.LabResults, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [one.seed for one in results.records] == [0, 5]
    assert results.failed == {}
    words = ["run", small, "--seeds", "0,5", "--only", "FO", "--set", "loop.steps=2"]
    assert rise(*words, "--out", tmp_path / "out") == 0
    assert "2 of them before" in capsys.readouterr().out
    expected = {cell.id for cell in cells_of(small, "loop.steps=2", "seeds=[0,5]")[:2]}
    assert {one.id for one in results.records} == expected
    again = lab.load(tmp_path / "out")
    assert {one.id for one in again.records} == expected


def test_frames(results: lab.LabResults, small: Path, tmp_path: Path) -> None:
    runs = results.frame()
    assert list(runs["seed"]) == [0, 5]
    assert list(runs["label"]) == ["FO", "FO"]
    record = results.records[0]
    assert runs["last"][0] == record.result.metrics["last"]
    tasks = results.frame("task")
    assert len(tasks) == 2 * len(record.result.tasks)
    score = record.result.scores[record.result.main_score]
    first = tasks[(tasks["seed"] == 0) & (tasks["task"] == 0)].iloc[0]
    assert (first["new"], first["end"]) == (score.matrix[0][0], score.matrix[-1][0])
    sessions = results.frame("session")
    one = sessions[(sessions["seed"] == 0) & (sessions["after"] == 1) & (sessions["task"] == 0)]
    assert set(one["percent"]) >= {score.matrix[1][0]}
    with pytest.raises(ValueError, match="by must be one of run, task, session; got 'epoch'"):
        results.frame("epoch")  # type: ignore[arg-type]
    both = lab.run(small, seeds=[0], out=tmp_path / "both")
    assert {4, 8} <= set(both.frame()["rule.q"]), "settings that differ are columns"


def test_it_shows_itself(results: lab.LabResults) -> None:
    html = results._repr_html_()
    assert html.startswith("<table>")
    assert '<td style="text-align:left">FO</td>' in html
    assert repr(results).splitlines()[2].split()[0] == "FO"


def test_frontier_and_report(results: lab.LabResults, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run has both measures of a frontier"):
        results.frontier()
    made = [record(one, s, rule=one.lower()) for one in ("FO", "RISE") for s in (0, 1)]
    save(tmp_path / "made", *made)
    results = lab.load(tmp_path / "made")
    found = results.frontier("FO")
    assert isinstance(found, Frontier)
    assert found.references == ("FO",)
    assert len(found.runs) == 4
    assert "<table>" in found._repr_html_()
    with pytest.raises(ValueError, match="reference must be one of FO, RISE; got 'nobody'"):
        results.frontier("nobody")
    page = results.report(tmp_path / "page.html")
    assert "FO" in page.read_text(encoding="utf-8")
    assert page.with_suffix(".md").exists()


def test_a_failure_is_told_and_the_others_stay(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write(with_host("fails"))
    with pytest.warns(RuntimeWarning, match="1 runs failed: odd seed 0: "):
        results = lab.run(path, out=tmp_path / "out")
    assert [one.row.label for one in results.records] == ["FO"]
    assert list(results.failed) == ["odd seed 0"]
    assert "odd seed 0 failed" in results._repr_html_()


def test_what_is_chosen_runs_too(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path, out = write(SELECTING), tmp_path / "out"
    results = lab.run(path, out=out)
    assert (len(results), results.failed) == (16, {})
    tested = {one.row.label for one in results.records if one.row.chosen_by}
    assert tested == {"FO (lr=1)", "RISE (lr=1)"}
    assert {one.id for one in lab.load(out).records} == {one.id for one in results.records}


def test_load_says_what_it_cannot_read(results: lab.LabResults, tmp_path: Path) -> None:
    (tmp_path / "out" / "record.json").write_text("{}")
    with pytest.warns(RuntimeWarning, match="1 files left out: .*is not a record"):
        assert len(lab.load(tmp_path / "out")) == 2
    with pytest.raises(ValueError, match="there is no 'nowhere'"):
        lab.load("nowhere")


def test_a_bar_in_notebooks() -> None:
    tqdm = pytest.importorskip("tqdm")
    with tqdm.tqdm(total=1, file=io.StringIO()) as bar:
        shown = progress.Display(bar)
        shown.tick(Tally(total=4, before=1, done=3))
        assert (bar.total, bar.n) == (4, 4)
