"""Files that are read by others: the citation, templates, the workflow, the oldest versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import risegrad

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text("utf-8"))


def test_the_citation_is_a_citation_file() -> None:
    citation = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == risegrad.__version__  # which the build reads, too
    assert "version" in PROJECT["dynamic"]
    assert citation["license"] == PROJECT["license"]
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors"} <= set(paper)
    assert [author["family-names"] for author in paper["authors"]] == ["Shu", "Mu", "Dai"]
    assert paper["title"] in (ROOT / "README.md").read_text("utf-8")


def test_no_line_of_the_readme_begins_with_a_mark() -> None:
    """There a comment begins a block of HTML: the paragraph breaks, and its code is not code."""
    assert "\n<!-- =" not in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_has_what_a_form_needs(path: Path) -> None:
    form = yaml.safe_load(path.read_text("utf-8"))
    if path.stem == "config":
        assert form == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= set(form)
    assert {entry["type"] for entry in form["body"]} == {"textarea"}
    names = [entry["id"] for entry in form["body"]]
    assert len(names) == len(set(names))
    assert all(entry["attributes"]["label"] for entry in form["body"])


def test_the_workflow_calls_what_is_called_by_hand() -> None:
    jobs = read(".github/workflows/ci.yml")["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert commands == [".ci/run", "make oldest", "make slow"]
    assert {
        "oldest",
        "slow",
        *re.findall(r"make (\w+)", (ROOT / ".ci/run").read_text("utf-8")),
    } <= targets


def lower_bounds(*extras: str) -> dict[str, str]:
    """The oldest version that is allowed of each package, as pyproject.toml has it."""
    lines = [*PROJECT["dependencies"]]
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    found: dict[str, str] = {}
    for requirement in map(Requirement, lines):
        if requirement.name == "risegrad":
            found |= lower_bounds(*requirement.extras)
        else:
            (bound,) = requirement.specifier
            assert bound.operator == ">="
            found[requirement.name] = bound.version
    return found


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    lines = (ROOT / "constraints-oldest.txt").read_text("utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    assert pinned == lower_bounds("all", "lightning", "test")


@pytest.mark.parametrize("path", ["CITATION.cff", "Makefile", "constraints-oldest.txt", *FORMS],
                         ids=lambda path: Path(path).name)  # fmt: skip
def test_no_path_of_a_machine_and_no_registry(path: str | Path) -> None:
    text = (ROOT / path).read_text("utf-8")
    assert not re.search(r"(?<![\w.$)])/(work|opt|root|home)/|https?://|index-url", text)
