"""Every example is a script that runs and ends in an assert."""

import ast
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tail import PATIENCE, by_default

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
FIRST = next(path for path in EXAMPLES if path.stem == "plain_pytorch")
QUICK = {"digits.py": ["--seeds", "1", "--steps", "60"]}
NEEDS = {"avalanche_naive.py": "avalanche", "trl_sft.py": "trl"}
"""Packages that not every environment has."""


def words(path):
    """What stands behind ``python``; skips where the example's package is not installed."""
    needed = NEEDS.get(path.name, "torch")
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    return [str(path), *QUICK.get(path.name, [])]


@pytest.mark.filterwarnings("ignore")  # the trainers' advice about workers and loggers
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path, tmp_path, monkeypatch):
    """In this process: most of an example's time is the import of its trainer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", words(path))
    runpy.run_path(str(path), run_name="__main__")


OTHERS = [path for path in EXAMPLES if path != FIRST]


@pytest.mark.parametrize("path", by_default(FIRST, slow=OTHERS), ids=lambda path: path.name)
def test_example_runs_as_a_script(path, tmp_path):
    command = [sys.executable, *words(path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_asserts_something(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert any(isinstance(node, ast.Assert) for node in ast.walk(tree))
