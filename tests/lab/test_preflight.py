"""Before the first run: everything that the whole grid lacks, in one message."""

import os
import re
import shutil
import tomllib
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from riselab.cli import main
from riselab.continual.devices import described
from riselab.experiments.file import experiments
from riselab.running import plan

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
    assert f"- CIFAR-100 is not complete in {tmp_path}/data/cifar-100-python (" in cifar
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
    monkeypatch.setattr(plan, "absent", lambda module: module == "ray")
    assert rise("run", small, "--out", tmp_path / "out", "--engine", "ray") == 2
    expected = 'ray is needed for --engine ray: pip install "risegrad[ray]"'
    assert expected in capsys.readouterr().err
    assert not os.path.exists(tmp_path / "out")


GPU = """
name = "large"
domain = "counting"
gpu = true
seeds = [0, 1]
[[rows]]
label = "FO"
[[rows]]
label = "RISE"
rule = { q = 4 }
"""
HERE = ("cpu", "the CPU (2 cores)")


def test_what_needs_a_gpu_runs_on_a_cpu_only_where_that_is_asked_for(
    write: Write, tmp_path: Path, asked: Any, capsys: Capture
) -> None:
    path, out = write(GPU, "large"), tmp_path / "out"
    asked(lambda settings: {"device": HERE})
    assert rise("run", path, "--out", out) == 2
    (line,) = capsys.readouterr().err.splitlines()[1:]
    assert line.startswith("- these runs need a GPU and there is none here: --on-cpu runs them on")
    assert not list(out.rglob("record.json"))
    assert rise("run", path, "--out", out, "--on-cpu") == 0
    assert capsys.readouterr().out.startswith("4 runs to do on the CPU (2 cores)\n")
    asked(lambda settings: {"device": ("cuda", "a GPU (80 GB)")})
    assert rise("run", path, "--out", out, "--seeds", 7) == 0


def test_check_only_says_where_and_how_long(
    write: Write, tmp_path: Path, asked: Any, capsys: Capture, monkeypatch: Patch
) -> None:
    """One row is timed, the larger; the other goes by its passes."""
    path, out = write(GPU, "large"), tmp_path / "out"
    asked(lambda settings: {"device": HERE})
    timed = []

    def seconds(settings: Any) -> float:
        timed.append(settings.rule.q)
        return 3600.0

    for module in {fake_workload, __import__("lab.fake_workload").fake_workload}:
        monkeypatch.setattr(module, "seconds", seconds, raising=False)
        monkeypatch.setattr(module, "estimate", lambda s: {"forward": s.rule.q, "backward": 0})
    assert rise("run", path, "--check", "--on-cpu", "--out", out) == 0
    assert capsys.readouterr().out.splitlines() == [
        "4 runs, 4 to do on the CPU (2 cores)",
        "about 2:30:00 here, one run at a time, without start-up",
    ]
    assert timed == [4]
    assert rise("run", path, "--check", "--out", out) == 2, "without the option it would not start"
    assert "need a GPU" in capsys.readouterr().err
    assert not out.exists(), "nothing is written"
    asked(lambda settings: {"missing": ["a moon"]})
    assert rise("run", path, "--check", "--on-cpu", "--out", out) == 2
    text, err = capsys.readouterr()
    assert "the time can be estimated when nothing is missing" in text
    assert err.endswith("- a moon\n")


def test_downloads_happen_once_and_before_the_workers(
    small: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    fetched: list[Any] = []
    for module in {fake_workload, __import__("lab.fake_workload").fake_workload}:
        monkeypatch.setattr(module, "fetch", fetched.append, raising=False)
    assert rise("run", small, "--check", "--out", tmp_path) == 0
    assert fetched == [], "a check downloads nothing"
    assert rise("run", small, "--out", tmp_path) == 0
    assert len(fetched) == 1, "six runs, one stream"

    def fails(settings: Any) -> None:
        raise OSError("the server is away")

    for module in {fake_workload, __import__("lab.fake_workload").fake_workload}:
        monkeypatch.setattr(module, "fetch", fails)
    capsys.readouterr()
    assert rise("run", small, "--out", tmp_path, "--seeds", 5) == 2
    assert capsys.readouterr().err.endswith("- the server is away\n")


def test_the_paper_s_files_need_a_gpu() -> None:
    files = experiments()
    large = {name for name, path in files.items() if tomllib.loads(path.read_text()).get("gpu")}
    assert large == {
        "table1-cifar100-inc5", "table1-domainnet-inc69", "table1-imagenet-r-inc5",
        "table2-order1", "table2-order2", "table2-order3", "table3-imagenet-r-inc5",
    }  # fmt: skip


def test_the_device_is_told_with_its_memory() -> None:
    kind, words = described("cpu")
    assert kind == "cpu"
    assert re.fullmatch(r"the CPU \(\d+ cores, [\d.]+ GB of memory\)", words)
