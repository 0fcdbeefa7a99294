"""The two houses: imports go down only and in no circle, and every module says what it is for."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import risegrad

SOURCE = Path(__file__).parents[1] / "src"

# From the bottom up. A room may import from lower floors of its house and from itself; the
# laboratory may import all of the library, the library nothing of the laboratory.
FLOORS = {
    "risegrad": [
        {"common", "moved"},
        {"theory"},
        {"core"},
        {"zeroth_order", "curvature"},
        {"memory"},
        {"curvature.diagnosis", "keeping"},
        {"integrations"},
    ],
    "riselab": [
        {"common"},
        {"plugins"},
        {"pages"},
        {"continual"},
        {"foresight", "sandbox"},
        {"experiments", "records", "running", "report", "frontier", "runs", "tune"},
        {"commands"},
        {"cli"},
    ],
}
FLOOR = {
    (house, room): number
    for house, floors in FLOORS.items()
    for number, floor in enumerate(floors)
    for room in floor
}
# From a file to its runs, their records and what these say: one trade in several rooms.
NEIGHBOURS = {"experiments", "records", "running", "report", "frontier", "runs", "tune"}
# Modules of names that people import from there, wherever the things themselves are.
DOOR = {"risegrad", "risegrad.lab", "risegrad.curvature"}

PATHS = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PATHS}


def dotted(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in PATHS}


def imported(nodes):
    """Our modules that import statements name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in full]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] in FLOORS)


def room(name):
    """House and room of a module; a folder in a room may be a room of its own."""
    house, *parts = name.split(".")
    deep = ".".join(parts[:2])
    return house, deep if (house, deep) in FLOOR else (parts or [""])[0]


def allowed(here, there):
    """Whether a module may import another."""
    (house, ours), (other, theirs) = room(here), room(there)
    if here in DOOR or not ours:
        return True
    if house != other:
        return house == "riselab"
    return (
        ours == theirs
        or {ours, theirs} <= NEIGHBOURS
        or (bool(theirs) and FLOOR[other, theirs] < FLOOR[house, ours])
    )


def test_imports_go_down_only():
    wrong = [
        f"{name} imports {other}"
        for name, path in MODULES.items()
        for other in imported(ast.walk(TREES[path]))
        if not allowed(name, other)
    ]
    assert wrong == []


def test_every_room_has_a_floor():
    assert {room(name) for name in MODULES if name not in DOOR and room(name)[1]} == set(FLOOR)


def test_a_wrong_import_is_seen():
    """The rule itself: up, across and to the other house."""
    assert allowed("riselab.cli", "risegrad.core.attachment")
    assert allowed("risegrad.keeping.keep", "risegrad.memory.memory")
    assert not allowed("risegrad.core.attachment", "risegrad.memory.memory")
    assert not allowed("risegrad.curvature.targets", "risegrad.memory.memory")
    assert not allowed("risegrad.curvature.targets", "risegrad.zeroth_order")
    assert allowed("risegrad.curvature.diagnosis.rules", "risegrad.memory.memory")
    assert not allowed("risegrad.memory.memory", "riselab.pages")
    assert not allowed("riselab.pages.charts", "riselab.records.record")


def test_no_circles():
    graph = {name: {*imported(TREES[path].body)} - {name} for name, path in MODULES.items()}
    known = {name: needed & MODULES.keys() for name, needed in graph.items()}
    list(TopologicalSorter(known).static_order())  # raises CycleError with the circle


def test_theory_needs_checks_only():
    for name, path in MODULES.items():
        if name.startswith("risegrad.theory"):
            for other in imported(ast.walk(TREES[path])):
                assert other.startswith(("risegrad.theory", "risegrad.common.checks")), name


def test_every_module_says_what_it_is_for():
    for path, tree in TREES.items():
        first = (ast.get_docstring(tree) or "").split("\n")[0]
        assert len(first) > 10, path
        assert first.endswith((".", "``")), f"{path}: {first}"


def test_files_and_functions_stay_small():
    """Generous bounds: the house style is far below them."""
    for path, tree in TREES.items():
        assert path.read_text(encoding="utf-8").count("\n") <= 450, path
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name}"


def fresh(code):
    """What a statement prints in a new interpreter."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_library_needs_torch_and_numpy_only():
    names = ", ".join(sorted({*risegrad.__all__} - {"diagnose", "frontier"}))
    code = (
        "import torch, numpy, sys; before = set(sys.modules); "
        f"from risegrad import {names}; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    found = {name for name in ast.literal_eval(fresh(code)) if not name.startswith("_cython")}
    assert found - set(sys.stdlib_module_names) <= {"risegrad", "torch", "numpy"}


def test_importing_is_quick():
    """Not even torch is loaded before it is used."""
    fresh("import risegrad, riselab.cli, sys; assert 'torch' not in sys.modules")


def test_a_callback_leaves_the_laboratory_alone():
    code = (
        "import risegrad.integrations.transformers, sys; "
        "print([m for m in sys.modules if m.startswith('riselab')])"
    )
    assert ast.literal_eval(fresh(code)) == []


LAZY = ["risegrad", "risegrad.curvature", "risegrad.memory", "riselab"]


@pytest.mark.parametrize("package", LAZY)
def test_names_that_are_looked_up_when_used_are_there(package):
    room = __import__(package, fromlist=["__all__"])
    assert room.__all__
    for name in room.__all__:
        assert getattr(room, name).__name__ == name
        assert name in dir(room)
        assert not (SOURCE / package.replace(".", "/") / f"{name}.py").exists(), (
            "a module would hide the function"
        )
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = room.missing
