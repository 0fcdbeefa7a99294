"""Before the first run: everything that the whole grid lacks, in one message."""

import os
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from risegrad.cli import main
from risegrad.lab.running import run_plan

from . import fake_workload
from .conftest import rise

Write = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

GRID = """
name = "grid"
domain = "vision"
seeds = [0, 1, 2]
[host]
name = "learnable-classifier"
[[rows]]
label = "CIFAR"
stream = { name = "cifar100-inc5" }
[[rows]]
label = "ours"
stream = { name = "mine", source = "npz", data = "mine.npz" }
model = { name = "vit_tiny_patch16_224", weights = "mine.safetensors" }
[[rows]]
label = "digits"
stream = { name = "digits" }
model = { name = "vit_tiny_patch16_224", pretrained = false, width = 16, depth = 1 }
"""


@pytest.fixture
def asked(monkeypatch: Patch) -> Callable[[Any], list[Any]]:
    """Let the fake workload know what it needs; the settings that it was asked about."""

    def answer(needs: Callable[[Any], dict[str, Any]]) -> list[Any]:
        seen: list[Any] = []

        def told(settings: Any, known: Any) -> dict[str, Any]:
            seen.append(settings)
            return needs(settings)

        for module in {fake_workload, __import__("lab.fake_workload").fake_workload}:
            monkeypatch.setattr(module, "needs", told, raising=False)
        return seen

    return answer


def test_one_message_for_the_whole_grid(
    write: Write, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    path, out = write(GRID, "grid"), tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(path), "--out", str(out)]) == 2
    text, err = capsys.readouterr()
    assert text == ""
    head, *lines = err.splitlines()
    assert head == "rise run: error: 9 runs cannot start, something is missing:"
    cifar, vit, npz, weights = sorted(lines, key=lambda line: ("ours" in line, lines.index(line)))
    assert f"- CIFAR-100 is not in {tmp_path}/data/cifar-100-python: --set stream." in cifar
    assert "--set stream.download=true" in cifar
    assert "model.name 'vit_base_patch16_224.augreg_in21k' is not in the local cache" in vit
    assert "model.safetensors of timm/vit_base_patch16_224.augreg_in21k on the Hugging" in vit
    assert all(line.endswith(' (for "CIFAR")') for line in (cifar, vit))
    assert f"- no .npz at {tmp_path}/mine.npz: write one" in npz
    assert f"- model.weights must be a file, got '{tmp_path}/mine.safetensors'" in weights
    assert all(line.endswith(' (for "ours")') for line in (npz, weights))
    assert not list(out.rglob("*")), "nothing was started"


def test_each_row_is_asked_once_and_what_is_done_needs_nothing(
    small: Path, tmp_path: Path, asked: Any, capsys: Capture
) -> None:
    seen = asked(lambda settings: {"missing": [], "bytes": 0})
    assert rise("run", small, "--out", tmp_path) == 0
    assert [settings.rule.q for settings in seen] == [1, 4, 8]
    seen = asked(lambda settings: {"missing": ["a moon"]})
    assert rise("run", small, "--out", tmp_path) == 0
    assert seen == []
    capsys.readouterr()
    assert rise("run", small, "--out", tmp_path, "--seeds", "7") == 2
    assert capsys.readouterr().err.splitlines()[1:] == ["- a moon"]


def test_many_rows_are_not_all_named(write: Write, tmp_path: Path, asked: Any, capsys: Any) -> None:
    text = (
        'name = "many"\ndomain = "counting"\n[[rows]]\nlabel = "FO"\n'
        '[[rows]]\nlabel = "RISE {rule.q}"\n[rows.vary]\n"rule.q" = [2, 3, 4, 5, 6]\n'
    )
    asked(lambda settings: {"missing": ["a moon"] if settings.rule.q > 1 else []})
    assert rise("run", write(text, "many"), "--out", tmp_path) == 2
    line = '- a moon (for "RISE 2", "RISE 3", "RISE 4" and 2 more)'
    assert capsys.readouterr().err.splitlines()[1:] == [line]


def test_room_for_the_runs_of_one_time(
    small: Path, tmp_path: Path, asked: Any, monkeypatch: Patch, capsys: Capture
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10**9, 0, 25 * 10**6))
    asked(lambda settings: {"bytes": 10**7})
    assert rise("run", small, "--out", tmp_path, "--workers", 3) == 2
    (line,) = capsys.readouterr().err.splitlines()[1:]
    expected = f"- 25.0 MB are free in {tmp_path}, and checkpoints may need 30.0 MB: make room, or"
    assert line.startswith(expected)
    assert rise("run", small, "--out", tmp_path, "--workers", 2) == 0


def test_an_engine_that_is_not_installed(
    small: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setattr(run_plan, "absent", lambda module: module == "ray")
    assert rise("run", small, "--out", tmp_path / "out", "--engine", "ray") == 2
    expected = 'ray is needed for --engine ray: pip install "risegrad[ray]"'
    assert expected in capsys.readouterr().err
    assert not os.path.exists(tmp_path / "out")
