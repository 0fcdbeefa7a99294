"""The house: imports go down only and in no circle, one name per thing, rooms of a modest size."""

import ast
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import risegrad

SOURCE = Path(__file__).parents[1] / "src" / "risegrad"

# From the bottom up. A room may import from lower floors and from itself.
FLOORS = [
    {"common"},
    {"plugins"},
    {"theory", "pages"},
    {"core"},
    {"zeroth_order", "curvature"},
    {"keeping"},
    {"integrations"},
    {"continual"},
    {"foresight", "sandbox"},
    {"lab"},
    {"cli"},
]
FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}

# Each framework's users import its callback from their own integration, where one name is kinder.
SAME_ON_PURPOSE = {"RiseCallback", "RememberCallback", "ForgettingCallback"}


def dotted(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


KNOWN = {dotted(path) for path in MODULES}


def top(path):
    """The name that stands on a floor: a module of the root, or a folder."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(node, path):
    """The modules of risegrad that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name.split(".")[0] == "risegrad")
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}: relative import"
        if (node.module or "").split(".")[0] == "risegrad":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in KNOWN or node.module == "risegrad" else node.module


def imports(path):
    """Those that a file imports anywhere, inside functions too."""
    for node in ast.walk(TREES[path]):
        yield from imported(node, path)


def imports_at_the_top(path):
    for node in TREES[path].body:
        yield from imported(node, path)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_only(path):
    here = top(path)
    assert here in FLOOR, f"{here} has no floor: add it to FLOORS"
    for name in imports(path):
        parts = name.split(".")
        assert len(parts) > 1, f"{path} imports the package root"
        assert parts[1] in FLOOR, f"{path} imports {name} from the package root"
        assert parts[1] == here or FLOOR[parts[1]] < FLOOR[here], f"{path} imports up: {name}"


def test_no_circles():
    graph = {dotted(path): {n for n in imports_at_the_top(path) if n in KNOWN} for path in MODULES}
    for name, needed in graph.items():
        needed.discard(name)
    list(TopologicalSorter(graph).static_order())  # raises CycleError with the circle


def test_theory_needs_checks_only():
    for path in (SOURCE / "theory").rglob("*.py"):
        for name in imports(path):
            assert name.startswith(("risegrad.theory", "risegrad.common.checks")), f"{path}: {name}"


def test_the_root_is_small():
    assert len(list(SOURCE.glob("*.py"))) <= 4


def test_no_two_files_have_one_name():
    """An editor's tab shows the file name alone."""
    names = Counter(path.name for path in MODULES if path.name != "__init__.py")
    assert [name for name, times in names.items() if times > 1] == []


def test_no_two_classes_have_one_name():
    found = Counter(
        node.name
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in found.items() if times > 1} <= SAME_ON_PURPOSE


def test_every_module_says_what_it_is_for():
    for path, tree in TREES.items():
        first = (ast.get_docstring(tree) or "").split("\n")[0]
        assert len(first) > 10, path
        assert first.endswith((".", "``")), f"{path}: {first}"


def test_files_and_functions_stay_small():
    """Generous bounds: the house style is far below them."""
    for path, tree in TREES.items():
        assert path.read_text(encoding="utf-8").count("\n") <= 400, path
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name}"


MOST_ARGUMENTS = 8


def functions(tree):
    """Every function, method and inner function with the class it is written in, if any."""
    for node in ast.walk(tree):
        inside = node.name if isinstance(node, ast.ClassDef) else ""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child, inside


def argument_count(function, inside):
    """Positional and keyword-only ones, without the object that a method is called on."""
    names = [*function.args.posonlyargs, *function.args.args]
    static = any(getattr(d, "id", "") == "staticmethod" for d in function.decorator_list)
    return len(names) + len(function.args.kwonlyargs) - (bool(inside) and not static)


def too_long(tree):
    """Public functions and constructors with more arguments than people keep in mind.

    A dataclass has no constructor of its own in the source: its fields are documented one by one.
    """
    for function, inside in functions(tree):
        public = not function.name.startswith("_") or function.name in ("__init__", "__call__")
        count = argument_count(function, inside)
        if public and count > MOST_ARGUMENTS:
            yield f"{function.lineno} {inside}.{function.name}: {count} arguments"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_public_functions_take_at_most_eight_arguments(path):
    assert list(too_long(TREES[path])) == []


def test_every_kind_of_argument_is_counted():
    nine = "a, b, c, /, d, e, *, f, g, h, i=0"
    source = f"""
def function({nine}): ...
async def waiting({nine}): ...
def _private({nine}): ...
class Public:
    def __init__(self, {nine}): ...
    def method(me, {nine}): ...
    @staticmethod
    def static({nine}): ...
    @classmethod
    def made(cls, {nine}): ...
    def fits(self, {nine.removesuffix(", i=0")}, **more): ...
"""
    found = [line.split()[1] for line in too_long(ast.parse(source))]
    named = [".function:", ".waiting:", "Public.__init__:", "Public.method:"]
    assert found == [*named, "Public.static:", "Public.made:"]


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


@pytest.mark.parametrize("package", ["curvature", "curvature.memory"])
def test_names_that_are_looked_up_when_used_are_there(package):
    room = import_module(f"risegrad.{package}")
    assert set(room.__all__) == set(room._HOMES)
    for name in room.__all__:
        assert getattr(room, name).__name__ == name


def test_public_names():
    assert len(risegrad.__all__) <= 17
    assert set(risegrad.__all__) == set(risegrad._HOMES)
    for name in risegrad.__all__:
        assert getattr(risegrad, name).__name__ == name
        assert name in dir(risegrad)
        assert not (SOURCE / f"{name}.py").exists(), "a module would hide the function"
    with pytest.raises(AttributeError, match="has no attribute 'missing'"):
        _ = risegrad.missing
