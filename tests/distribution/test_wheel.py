"""Wheel and sdist, built, checked and installed as a user would: needs a package index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distribution.test_extras import CORE, PROMISES

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    """A command away from the sources, which must succeed."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=clean, timeout=1800
    )
    assert found.returncode == 0, (found.stdout + found.stderr)[-3000:]
    return found.stdout


def environment(folder: Path, *packages: str | Path) -> Path:
    """The folder of programs of a new virtual environment with these packages."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", *packages, cwd=folder.parent)
    return folder / "bin"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tools")
    try:
        programs = environment(folder / "venv", "build", "twine")
    except AssertionError as error:
        pytest.skip(f"no package index can be reached: {str(error)[-200:]}")
    yield programs
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def built(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist of the sources and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(tools / "python", "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


def test_both_files_pass_twine(tools: Path, built: Path) -> None:
    files = sorted(built.iterdir())
    assert [path.suffix for path in files] == [".whl", ".gz"]
    told = run(tools / "twine", "check", "--strict", *files, cwd=built)
    assert told.count("PASSED") == 2


def test_the_wheel_works_with_the_core_dependencies_only(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    programs = environment(tmp_path / "venv", wheel)
    run(programs / "python", "-c", CORE, cwd=tmp_path)
    assert "usage: rise" in run(programs / "rise", "--help", cwd=tmp_path)
    listed = run(programs / "rise", "list", cwd=tmp_path)
    assert "turned-digits" in listed  # the experiment files are in the wheel
    shutil.rmtree(tmp_path / "venv")  # torch is large


@pytest.mark.parametrize("extra", [*PROMISES, "all"])
def test_each_extra_can_be_installed(tools: Path, built: Path, extra: str) -> None:
    """The resolver finds versions that fit together; nothing but their metadata is fetched."""
    (wheel,) = built.glob("*.whl")
    wanted = f"risegrad[{extra}] @ {wheel.as_uri()}"
    run(tools / "python", "-m", "pip", "install", "-q", "--dry-run", wanted, cwd=built)
