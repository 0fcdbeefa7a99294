"""``rise report``: files, messages, exit codes."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report.made_up import hostile, record, save, whole_study
from riselab.commands import report as report_command
from riselab.pages.page import html
from riselab.records.record import read_record
from riselab.report.builder import build


def run(*argv: str | Path) -> int:
    """As the command line does it: parse, plan, do."""
    parser = argparse.ArgumentParser()
    report_command.add_arguments(parser)
    return report_command.plan(parser.parse_args([str(word) for word in argv]))()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    whole_study(folder / "runs")
    assert run(folder / "runs", "--out", folder / "report.html", "--quiet") == 0
    return folder


def test_two_files_and_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "runs", record("FO", 0), record("FO", 1))
    out = tmp_path / "new" / "folder" / "mine.html"
    assert run(tmp_path / "runs", "--out", out) == 0
    assert sorted(os.listdir(out.parent)) == ["mine.html", "mine.md"]
    printed, warned = capsys.readouterr()
    assert "Results of digits" in printed
    assert printed.rstrip().endswith(f"{out}, {out.with_suffix('.md')}")
    assert warned == ""


def test_an_absurd_record_is_named_and_the_others_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, huge, far = save(tmp_path / "runs", record(), record("huge"), record("far"))
    huge.write_text(re.sub(r'"avg": [0-9.]+', '"avg": 1e308', huge.read_text()))
    far.write_text(re.sub(r'"seed": 0', f'"seed": 1{"0" * 400}', far.read_text()))
    assert run(tmp_path / "runs", "--out", tmp_path / "report.html") == 0
    printed, warned = capsys.readouterr()
    assert f"left out {huge}: result.metrics.avg must be between -1e+100 and 1e+100" in warned
    assert f"left out {far}: seed must be between -9.22337e+18 and 1.84467e+19" in warned
    assert str(good) not in warned
    assert "FO" in printed
    assert "nan" not in printed


def test_charts_are_saved_on_demand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "runs", record("FO", 0), record("RISE", 0))
    figures = tmp_path / "new" / "figures"
    run(tmp_path / "runs", "--out", tmp_path / "report.html", "--figures", figures)
    assert f"Wrote the charts to {figures}" in capsys.readouterr().out
    names = ["digits-frontier", "digits-matrices-accuracy", "digits-stream-accuracy"]
    assert sorted(os.listdir(figures)) == [f"{n}.{end}" for n in names for end in ("png", "svg")]
    assert "RISE" in (figures / "digits-frontier.svg").read_text(encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"--figures must be a place .*File exists"):
        run(tmp_path / "runs", "--out", tmp_path / "r.html", "--figures", tmp_path / "report.html")


def test_a_small_figure_of_chosen_methods_is_saved_light_and_dark(tmp_path: Path) -> None:
    save(tmp_path / "runs", *(record(label, 0) for label in ("FO", "RISE", "EWC")))
    wanted = ["--only", "RISE", "--only", "FO", "--quiet", "--out", tmp_path / "report.html"]
    run(tmp_path / "runs", "--figures", tmp_path / "figures", *wanted)
    names = [f"digits-small{end}" for end in ("-dark.png", "-dark.svg", ".png", ".svg")]
    assert sorted(p.name for p in (tmp_path / "figures").glob("*small*")) == names
    drawn = (tmp_path / "figures" / "digits-small.svg").read_text(encoding="utf-8")
    assert "RISE" in drawn
    assert "EWC" not in drawn
    wanted[1] = "GPM"
    with pytest.raises(
        RuntimeError, match="--only must be a method, one of EWC, FO, RISE; got GPM"
    ):
        run(tmp_path / "runs", "--figures", tmp_path / "figures", *wanted)


def test_the_same_records_give_the_same_bytes(study: Path, tmp_path: Path) -> None:
    run(study / "runs", "--out", tmp_path / "report.html", "--quiet")
    for name in ("report.html", "report.md"):
        assert (tmp_path / name).read_bytes() == (study / name).read_bytes()


def test_broken_files_are_named_and_the_others_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "runs", record())
    (tmp_path / "runs" / "cut.json").write_text('{"schema": 1, "row": {"lab')
    (tmp_path / "runs" / "newer.json").write_text('{"schema": 9, "row": {}}')
    assert run(tmp_path / "runs", "--out", tmp_path / "report.html", "--quiet") == 0
    printed, warned = capsys.readouterr()
    assert printed == ""
    lines = warned.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("rise report: warning: left out ")
    assert "cut.json: is not complete JSON" in lines[0]
    assert "newer.json: has schema 9; this version reads up to 2" in lines[1]
    for name in ("report.html", "report.md"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "cut.json: is not complete JSON" in text
        assert "newer.json: has schema 9" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["none"], "RUNS must be records or folders, there is no 'none'"),
        ([".", "--out", "report.pdf"], "--out must be a file that ends in .html, got 'report.pdf'"),
        (
            [".", "--only", "FO"],
            "--only chooses the methods of a figure, so it needs --figures DIR",
        ),
        ([".", "--figures", "f", *["--only", "x"] * 5], "--only must be at most 4 methods, got 5"),
    ],
)
def test_wrong_arguments(argv: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        run(*argv)


def test_no_record_at_all_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cut.json").write_text("{")
    with pytest.raises(RuntimeError, match="no record could be read from "):
        run(tmp_path, "--out", tmp_path / "report.html")
    assert "cut.json" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["cut.json"]


def test_a_baseline_that_no_row_has_is_an_error(tmp_path: Path) -> None:
    save(tmp_path, record("FO"), record("RISE"))
    with pytest.raises(RuntimeError, match="one of FO, RISE; got SGD"):
        run(tmp_path, "--baseline", "SGD", "--out", tmp_path / "report.html")


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    save(tmp_path / "runs", record())
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match=r"--out must be a place .*File exists"):
        run(tmp_path / "runs", "--out", tmp_path / "file" / "report.html")


def test_a_failed_report_leaves_the_old_one(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "report.html"
    run(study / "runs", "--out", out, "--quiet")
    before = out.read_bytes()
    save(tmp_path / "runs", record())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RuntimeError, match="No space left on device"):
        run(tmp_path / "runs", "--out", out)
    assert out.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["report.html", "report.md", "runs"]


class Outline(HTMLParser):
    """Elements and attributes of a page, to see that it is whole and needs nothing else."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def test_the_page_is_whole_and_needs_nothing_from_outside(study: Path) -> None:
    outline = Outline((study / "report.html").read_text(encoding="utf-8"))
    assert outline.open == []
    identities = [a["id"] for _, a in outline.found if "id" in a]
    assert len(identities) == len(set(identities))
    for name, attributes in outline.found:
        assert "style" not in attributes
        assert not any(key.startswith("on") for key in attributes), name
        for key in ("href", "src"):
            assert (attributes.get(key) or "#").startswith(("#", "data:,")), attributes
    for attributes in outline.all("div"):
        if attributes.get("class") == "frame":
            assert attributes["aria-labelledby"] in identities
    assert all(a.get("scope") for a in outline.all("th"))
    assert len(outline.all("caption")) == len(outline.all("table"))
    policy = next(a["content"] for a in outline.all("meta") if "http-equiv" in a)
    assert policy is not None
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_markdown_tables_have_as_many_cells_as_titles(study: Path) -> None:
    text = (study / "report.md").read_text(encoding="utf-8")
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1
    assert "(paper 89.75)" in text
    assert "its own runs, Table 1, CIFAR100 Inc-5, ViT-B/16. These runs: cifar100-inc5" in text
    assert "after correction for the number of rows (Holm" in text


def test_hostile_text_stays_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "runs", hostile(0), hostile(1))
    (tmp_path / "runs" / "<img src=x>\x1b[31m.json").write_text("{")
    run(tmp_path / "runs", "--out", tmp_path / "report.html")
    outline = Outline((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert len(outline.all("script")) == 2
    assert outline.all("img") == []
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "<" not in markdown
    printed, warned = capsys.readouterr()
    assert "\x1b" not in printed + warned
    assert "\x1b" not in markdown


def test_a_grid_of_a_thousand_runs_is_reported_soon(tmp_path: Path) -> None:
    (path,) = save(tmp_path, record("FO", 0, tasks=2, baseline=True))
    one = read_record(path)
    many = [
        replace(one, seed=seed, row=replace(one.row, label=f"row {k}", baseline=k == 0))
        for k in range(100)
        for seed in range(10)
    ]
    assert len(html(build(many).page)) > 100_000
