"""docs/theory.md is complete and true: every number is there, every name on it exists."""

import ast
import re
from functools import cache
from pathlib import Path

from risegrad import theory
from risegrad.theory import conditions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text()

# Counted from the paper's source as LaTeX numbers it: one per equation environment, one per line
# of an align without \nonumber; theorem-like environments share one counter per section.
EQUATIONS = 121
ITEMS = {
    "Assumption": ["2.1"],
    "Lemma": ["3.1", "3.2", "E.1"],
    "Theorem": ["4.1", "4.3", "4.4", "C.1", "C.3", "E.2"],
    "Corollary": ["4.2", "4.5", "B.2", "B.3"],
    "Proposition": ["B.1", "C.2", "C.4"],
    "Algorithm": ["1"],
}

NUMBERED = rf"\| (\(\d+\)( to \(\d+\))?|({'|'.join(ITEMS)}) [\w.]+) \|"


def rows(first_cell):
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.splitlines()
        if re.match(first_cell, line) and "`test_" in line
    ]


ROWS, BEYOND = rows(NUMBERED), rows(r"\| Beyond \d+ \|")
BEYOND_MODULES = ("informed", "keep", "progress")


def names_in(text):
    return re.findall(r"`([^`]+)`", text)


@cache
def defined_in(module):
    tree = ast.parse((ROOT / "tests" / "theory" / f"{module}.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_equation_is_there_once_and_in_order():
    found = [[int(n) for n in re.findall(r"\d+", row[0])] for row in ROWS if row[0][0] == "("]
    numbers = [n for ends in found for n in range(ends[0], ends[-1] + 1)]
    assert numbers == list(range(1, EQUATIONS + 1))


def test_every_theorem_is_there_once():
    found = [row[0] for row in ROWS if not row[0].startswith("(")]
    expected = [f"{kind} {number}" for kind, numbers in ITEMS.items() for number in numbers]
    assert sorted(found) == sorted(expected)


def test_what_the_rows_name_exists():
    for place, _, functions, tests in ROWS + BEYOND:
        assert names_in(functions), place
        assert names_in(tests), place
        for name in names_in(functions):
            assert name in theory.__all__ or name in vars(conditions), f"{place}: {name}"
        for name in names_in(tests):
            module, test = name.split("::")
            assert test in defined_in(module), f"{place}: {name}"


def test_every_function_beyond_the_paper_has_a_row():
    assert [row[0] for row in BEYOND] == [f"Beyond {i + 1}" for i in range(len(BEYOND))]
    named = {name: row for row in BEYOND for name in names_in(row[2])}
    functions = [n for n in theory.__all__ if hasattr(getattr(theory, n), "__code__")]
    homes = {name: getattr(theory, name).__module__.rpartition(".")[2] for name in functions}
    beyond = {name for name, home in homes.items() if home in BEYOND_MODULES}
    assert set(named) == beyond | {"smaller_step_ratio"}


def test_every_test_named_in_the_text_exists():
    named = set(re.findall(r"(test_theory_\w+)::(test_\w+)", PAGE))
    assert len(named) > 50
    assert [(m, name) for m, name in named if name not in defined_in(m)] == []


def test_every_public_function_is_on_the_page_or_is_a_result():
    functions = {n for n in theory.__all__ if callable(getattr(theory, n)) and n[0].islower()}
    beyond = {"blockwise_variance", "chi_square_moment", "quadratic_linear_covariance"}
    beyond |= {"third_moment", "norm_matched_sampler", "blockwise_progress_cost"}
    named = {word for name in names_in(PAGE) for word in re.findall(r"\w+", name)}
    assert functions - named == beyond


def test_all_lists_every_public_name_of_the_modules():
    internal = {"__init__", "calibration", "conditions"}
    defined = set()
    for path in (ROOT / "src" / "risegrad" / "theory").glob("*.py"):
        body = ast.parse(path.read_text()).body if path.stem not in internal else []
        defined |= {n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    public = {name for name in defined if not name.startswith(("_", "check_"))}
    assert set(theory.__all__) == public | {"PROVEN_CONSTANT", "ShapeSampler", "SpectralFilter"}
    assert all(hasattr(theory, name) for name in theory.__all__)
