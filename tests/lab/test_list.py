"""``rise list``: what there is, one line each."""

from pathlib import Path

import pytest

from riselab.cli import main
from riselab.commands import list as listing
from riselab.experiments import file

WORDS = {
    "hosts": {"zo-fc": "A frozen model and a head.", "lora": "Low rank. " * 40},
    "rules": {"rise": "The rule."},
    "streams": {"digits": "Handwritten digits."},
}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "registered", lambda: WORDS)
    monkeypatch.setattr(file, "PLACES", ())
    monkeypatch.setenv("COLUMNS", "80")


def test_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("hosts\n  zo-fc  A frozen model and a head.\n  lora   Low rank.")
    assert "\n\nrules\n  rise  The rule.\n\nstreams\n" in text
    assert "experiments" not in text, "there are none"
    assert max(map(len, text.splitlines())) <= 80


def test_a_pipe_gets_the_whole_text(capsys: pytest.CaptureFixture[str]) -> None:
    """What is cut cannot be searched."""
    assert main(["list", "hosts"]) == 0
    assert "Low rank. " * 39 + "Low rank." in capsys.readouterr().out


def test_one_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "rules"]) == 0
    assert capsys.readouterr().out == "rules\n  rise  The rule.\n"
    assert main(["list", "experiments"]) == 0
    assert capsys.readouterr().out == "there are no experiments\n"
    assert main(["list", "host"]) == 2
    assert "invalid choice: 'host'" in capsys.readouterr().err


def test_an_experiment_is_listed_by_what_it_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = "Which of two methods keeps more of what it knew when both have learned equally much?"
    head = 'domain = "x"\n[[rows]]\nlabel = "a"\n'
    (tmp_path / "asks.toml").write_text(f'name = "asks"\ntitle = "T"\nquestion = "{asked}"\n{head}')
    (tmp_path / "plain.toml").write_text(f'name = "plain"\ntitle = "A title"\n{head}')
    monkeypatch.setattr(file, "PLACES", (tmp_path,))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["list", "experiments"]) == 0
    text = capsys.readouterr().out
    assert asked in " ".join(text.split()), "to its end, over several lines"
    assert "\n  plain  A title\n" in text
    assert max(map(len, text.splitlines())) <= 80
