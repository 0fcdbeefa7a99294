"""The engine ``ray``: the same records as ``local``; a worker that is killed does not matter."""

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tail import PATIENCE

from .conftest import EXPERIMENT, cells_of, rise, rise_process
from .test_reliability import LONG, wait_for, worker_of
from .test_run import ONE, with_host, without_run

pytest.importorskip("ray")
Write = Callable[..., Path]


def run_on_ray(path: Path, out: Path, *more: Any) -> str:
    with rise_process("run", path, "--out", out, "--engine", "ray", *more) as process:
        text, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return str(text)


def test_one_run_on_ray_is_the_same_as_here(write: Write, tmp_path: Path) -> None:
    path = write(ONE)
    text = run_on_ray(path, tmp_path / "ray", "--workers", 1)
    assert "1 of 1 runs done" in text
    assert rise("run", path, "--out", tmp_path / "local") == 0
    (cell,) = cells_of(path)
    ours, theirs = (tmp_path / name / cell.folder / "record.json" for name in ("ray", "local"))
    assert without_run(ours) == without_run(theirs)
    packages = json.loads(ours.read_text())["run"]["environment"]["packages"]
    assert packages == json.loads(theirs.read_text())["run"]["environment"]["packages"]


def test_an_address_where_nobody_is(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as bound:  # bound but not listening: nobody answers, and nobody else can
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        argv = ["run", small, "--out", tmp_path / "out", "--engine", "ray", "--address", address]
        assert rise(*argv) == 1
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert f"no Ray cluster answers at '{address}'" in err[0]


@pytest.mark.slow
def test_a_grid_on_ray(small: Path, tmp_path: Path) -> None:
    run_on_ray(small, tmp_path / "ray")
    assert rise("run", small, "--out", tmp_path / "local") == 0
    for cell in cells_of(small):
        ours, theirs = (tmp_path / name / cell.folder / "record.json" for name in ("ray", "local"))
        assert without_run(ours) == without_run(theirs)
    assert "6 of them before" in run_on_ray(small, tmp_path / "ray")


@pytest.mark.slow
def test_a_ray_worker_killed_mid_run(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PAUSE", "0.01")
    path, out = write(LONG), tmp_path / "out"
    (cell,) = cells_of(path)
    folder = out / cell.folder
    with rise_process("run", path, "--out", out, "--engine", "ray", "--workers", 1) as process:
        os.kill(wait_for(lambda: worker_of(folder)), signal.SIGKILL)
        text, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert "its Ray worker died" in text
    assert json.loads((folder / "record.json").read_text())["run"]["resumed"] == 1
    assert rise("run", path, "--out", tmp_path / "calm") == 0
    calm = tmp_path / "calm" / cell.folder / "record.json"
    assert without_run(folder / "record.json") == without_run(calm)


@pytest.mark.slow
def test_a_failure_on_ray(write: Write, tmp_path: Path) -> None:
    path = write(with_host("fails"))
    argv = ["run", path, "--out", tmp_path / "out", "--engine", "ray"]
    with rise_process(*argv) as process:
        text, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "1 of 2 runs done" in text
    assert "ArithmeticError: the loss is not a number" in err


@pytest.mark.slow
def test_an_interrupt_on_ray(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_PAUSE", "0.1")
    path, out = write(LONG), tmp_path / "out"
    (cell,) = cells_of(path)
    with rise_process("run", path, "--out", out, "--engine", "ray") as process:
        worker = wait_for(lambda: worker_of(out / cell.folder))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "the same command continues from here" in err
    wait_for(lambda: not alive(worker))


@pytest.mark.slow
def test_two_engines_share_one_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PAUSE", "0.3")
    path, out = write(EXPERIMENT), tmp_path / "out"
    argv = ["run", path, "--out", out, "--workers", 1]
    with rise_process(*argv) as one, rise_process(*argv, "--engine", "ray") as two:
        texts = [process.communicate(timeout=PATIENCE)[0] for process in (one, two)]
    assert [one.returncode, two.returncode] == [0, 0], texts
    for cell in cells_of(path):
        assert len((out / cell.folder / "starts.txt").read_text().split()) == 1


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
