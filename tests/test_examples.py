"""Every example is a script that runs and ends in an assert."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
QUICK = {"digits.py": ["--seeds", "1", "--steps", "60"]}
NEEDS = {"avalanche_naive.py": "avalanche", "trl_sft.py": "trl"}
"""Packages that not every environment has."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path, tmp_path):
    needed = NEEDS.get(path.name, "torch")
    if find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    command = [sys.executable, str(path), *QUICK.get(path.name, [])]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_asserts_something(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert any(isinstance(node, ast.Assert) for node in ast.walk(tree))
