"""The page about the lab: its experiment can be read, and what it names exists."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from riselab.cli import build_parser
from riselab.continual.runs import read_config
from riselab.experiments.cells import expand
from riselab.experiments.file import SECTIONS, load_experiment


def arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of the program and of its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from arguments(below)
        else:
            yield action


PAGE = (Path(__file__).parents[2] / "docs" / "lab.md").read_text(encoding="utf-8")


def test_the_experiment_on_the_page(tmp_path: Path) -> None:
    text, _sweep = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "x.toml").write_text(text)
    cells = expand(load_experiment(tmp_path / "x.toml"), read_config)
    labels = list(dict.fromkeys(cell.row.label for cell in cells))
    assert labels == ["FO", "RISE q=1", "RISE q=8"]
    assert len(cells) == 9


def test_the_options_on_the_page_exist() -> None:
    known = {option for action in arguments(build_parser()) for option in action.option_strings}
    assert set(re.findall(r"--[a-z]+(?:-[a-z]+)*", PAGE)) <= known
    for section in SECTIONS:
        assert f"`{section}`" in PAGE
