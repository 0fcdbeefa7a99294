"""The layers: imports go down only, nobody imports the package root, the root is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import risegrad

SOURCE = Path(__file__).parents[1] / "src" / "risegrad"

# From the bottom up. A module may import from lower floors and from its own.
FLOORS = [
    {"calibration", "checks", "files", "lazy", "optional", "reductions", "settings"},
    {"inputs"},
    {"theory", "rule", "draws", "blocks", "pages"},
    {"layout", "shapers", "sharding", "naming"},
    {"arithmetic", "coverage", "optimizers", "saved", "summary"},
    {"pieces"},
    {"shaping"},
    {"attachment", "zeroth_order"},
    {"sandbox", "continual", "curvature"},
    {"lab", "integrations", "foresight"},
    {"cli"},
]
FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def top(path):
    """The name that stands on a floor: a module of the root, or a folder."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imports(path):
    """The modules of risegrad that a file imports anywhere, as dotted names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (
                alias.name for alias in node.names if alias.name.split(".")[0] == "risegrad"
            )
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "risegrad":
                yield from (f"risegrad.{alias.name}" for alias in node.names)
            elif (node.module or "").startswith("risegrad."):
                yield node.module


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_only(path):
    here = top(path)
    assert here in FLOOR, f"{here} has no floor: add it to FLOORS"
    for name in imports(path):
        parts = name.split(".")
        assert len(parts) > 1, f"{path} imports the package root"
        assert parts[1] in FLOOR, f"{path} imports {name} from the package root"
        assert parts[1] == here or FLOOR[parts[1]] < FLOOR[here], f"{path} imports up: {name}"


def test_theory_needs_calibration_and_checks_only():
    for path in (SOURCE / "theory").rglob("*.py"):
        for name in imports(path):
            assert name.split(".")[1] in {"calibration", "checks", "theory"}, f"{path}: {name}"


def fresh_imports(statement):
    """The packages that a statement adds to a new interpreter that has torch and numpy already."""
    code = (
        f"import torch, numpy, sys; before = set(sys.modules); {statement};"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {name for name in ast.literal_eval(result.stdout) if not name.startswith("_cython")}
    return found - set(sys.stdlib_module_names)


def test_the_package_needs_torch_and_numpy_only():
    names = ", ".join(risegrad.__all__)
    assert fresh_imports(f"from risegrad import {names}") <= {"risegrad", "torch", "numpy"}


def test_importing_the_package_is_quick():
    """Not even torch is loaded before it is used."""
    code = "import risegrad, risegrad.cli, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names():
    assert len(risegrad.__all__) <= 14
    assert set(risegrad.__all__) == set(risegrad._HOMES)
    for name in risegrad.__all__:
        assert getattr(risegrad, name).__name__ == name
        assert name in dir(risegrad)
        assert not (SOURCE / f"{name}.py").exists(), "a module would hide the function"
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = risegrad.missing


def test_files_and_functions_stay_small():
    """Generous bounds: the house style is far below them."""
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name}"
