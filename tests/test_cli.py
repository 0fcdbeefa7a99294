"""The command ``rise``: help, errors, exit codes, and one small run in and out of process."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from risegrad.common.imports import EXTRAS
from riselab.cli import commands, main
from riselab.sandbox import command as sandbox
from riselab.sandbox import figures
from riselab.sandbox.run import SandboxSettings

SMALL = ["--d", "8", "--q", "2", "--samples", "640", "--large-d", "16", "--block", "4"]
SMALL += ["--steps", "3"]


def failing(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str]]:
    """Exit code and the lines on stderr; nothing may be on stdout."""
    code = main(argv)
    out, err = capsys.readouterr()
    assert out == ""
    return code, err.splitlines()


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "examples:\n  rise list\n" in text
    assert "'rise COMMAND --help' explains each command" in text
    for command in commands():
        assert command.NAME in text


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.NAME)
def test_every_command_has_a_description_and_examples_that_parse(
    command: object, capsys: pytest.CaptureFixture[str]
) -> None:
    name, examples = command.NAME, command.EXAMPLES  # type: ignore[attr-defined]
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert examples
    for example in examples:
        assert f"\n  {example}\n" in text
        program, *argv = example.split()
        assert program == "rise"
        assert main([*argv, "--help"]) == 0


def test_the_defaults_in_the_help_are_those_of_the_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["sandbox", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for field in fields(SandboxSettings):
        option = f" --{field.name.replace('_', '-')} {'KIND' if field.type is str else 'N'} "
        _, _, after = text.rpartition(option)  # where it is explained, not in the usage line
        found = re.search(r"\(default ([^)]+)\)", after)
        assert found, field.name
        assert found[1] == str(field.default)
    assert set(sandbox.NUMBERS) | {"spectrum"} == {field.name for field in fields(SandboxSettings)}


def test_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"rise (\d+\.\d+\S*|\(not installed\))\n", capsys.readouterr().out)


def test_no_command_shows_the_help_and_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["sandbox", "--q", "0"], "q must be an integer >= 1 and <= 4096, got 0"),
        (["sandbox", "--d", "1"], "d must be an integer >= 2 and <= 4096, got 1"),
        (["sandbox", "--samples", "10"], "samples must be an integer >= 640 and <= 1000000000"),
        (["sandbox", "--block", "7"], "block must divide large_d=256 without remainder, got 7"),
        (["sandbox", "--spectrum", "cubic"], "spectrum must be powerlaw:P (i**-P"),
        (["sandbox", "--q", "four"], "argument --q: invalid int value: 'four'"),
        (["sandbox", "--queries", "4"], "unrecognized arguments: --queries 4"),
        (["sandpit"], "invalid choice: 'sandpit'"),
    ],
)
def test_wrong_arguments_are_two_lines_and_exit_code_two(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    code, lines = failing(capsys, *argv)
    assert code == 2
    assert len(lines) == 2
    assert lines[0].startswith("rise")
    assert message in lines[0]
    assert re.fullmatch(r"See 'rise( sandbox)? --help'\.", lines[1])


def test_a_folder_that_cannot_be_written_fails_at_once_with_exit_code_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    # The full default run would take most of a minute; that this returns at once is the point.
    code, lines = failing(capsys, "sandbox", "--out", str(tmp_path / "file" / "results"))
    assert code == 1
    assert len(lines) == 2
    assert "--out must be a folder that can be written, got '" in lines[0]
    assert "results' (Not a directory)" in lines[0]


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    argv = ["sandbox", "--out", str(tmp_path / "file" / "results")]
    argv = ["--debug", *argv] if place == "before" else [*argv, "--debug"]
    code, lines = failing(capsys, *argv)
    assert code == 1
    assert any(line.startswith("Traceback") for line in lines)
    assert any("NotADirectoryError" in line for line in lines)


@pytest.mark.parametrize("missing", ["matplotlib", "tqdm"])
def test_a_missing_extra_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    code, lines = failing(capsys, "sandbox")
    assert code == 1
    assert f'{missing} is needed: pip install "risegrad[lab]"' in lines[0]


def test_an_unexpected_error_is_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise KeyError

    monkeypatch.setattr(sandbox, "execute", broken)
    code, lines = failing(capsys, "sandbox")
    assert code == 1
    assert lines == ["rise sandbox: error: KeyError", "Add --debug to see the traceback."]


def test_an_interrupt_is_exit_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sandbox, "execute", stopped)
    code, lines = failing(capsys, "sandbox")
    assert code == 130
    assert lines == ["rise sandbox: interrupted"]


def test_a_small_run_writes_the_record_and_the_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two of the seven figures: the process below draws them all.
    chosen = ["figure-1-curvature", "figure-3-exposure"]
    monkeypatch.setattr(figures, "FIGURES", {name: figures.FIGURES[name] for name in chosen})
    out = tmp_path / "new" / "folder"
    assert main(["sandbox", "--out", str(out), "--seed", "3", *SMALL]) == 0
    shown, err = capsys.readouterr()
    assert err == ""  # no progress bar where nobody watches
    assert "blockwise / global deviation at q=2" in shown
    content = json.loads((out / "sandbox.json").read_text())
    assert content["settings"]["seed"] == 3
    assert content["settings"]["d"] == 8
    on_disk = {path.name for path in out.iterdir()}
    assert on_disk == {"sandbox.json", *content["figures"]}
    assert len(content["figures"]) == 4
    for name in on_disk:
        assert f"wrote {out / name}" in shown


def test_the_installed_way_to_call_it_works(tmp_path: Path) -> None:
    """As a process of its own: exit code, quiet, another spectrum."""
    argv = ["sandbox", "--quiet", "--out", "results", "--spectrum", "spiked:2,9", *SMALL]
    done = subprocess.run(
        [sys.executable, "-m", "riselab.cli", *argv],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    content = json.loads((tmp_path / "results" / "sandbox.json").read_text())
    assert content["settings"]["spectrum"] == "spiked:2,9"
    assert len(content["figures"]) == 14


def test_help_imports_nothing_heavy() -> None:
    """The package root imports torch, which is not this command's doing; so it is left out here."""
    code = """
import importlib.util, sys, types
root = types.ModuleType("risegrad")
root.__path__ = list(importlib.util.find_spec("risegrad").submodule_search_locations)
for name in [n for n in sys.modules if n.split(".")[0] in ("torch", "risegrad")]:
    del sys.modules[name]
sys.modules["risegrad"] = root
from riselab.cli import main
early = {name for name in sys.modules if name.startswith("riselab.")} - {"riselab.cli"}
if early:
    sys.exit(f"imported before an interrupt is caught: {early}")
code = main(["--help"])
heavy = {"torch", "numpy", "matplotlib", "tqdm"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


ABSENT = """
import sys
from importlib.machinery import PathFinder

EXTRAS = {names}
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(
    lambda cls, name, *rest: None if name.partition(".")[0] in EXTRAS else find(name, *rest)
)
"""

LANGUAGE = """
name = "texts"
domain = "language"
stream = { name = "order1", data = "nowhere" }
host = { name = "seq-lora" }
rows = [{ label = "one" }]
"""

Core = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def core_only(tmp_path: Path) -> Core:
    """``rise`` in a Python that has torch and numpy and none of the extras."""
    blocked = set(EXTRAS) | {"scipy", "pandas", "pyarrow"}
    (tmp_path / "sitecustomize.py").write_text(ABSENT.replace("{names}", repr(blocked)))
    (tmp_path / "texts.toml").write_text(LANGUAGE)
    source = str(Path(__file__).parents[1] / "src")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), source])}
    return lambda *argv: subprocess.run(
        [sys.executable, "-m", "riselab.cli", *argv],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


# Every command is here, with what it says in a core-only installation and its exit code.
CORE_ONLY = {
    "list": [(["list"], 0, "\n  zo-fc ")],
    "show": [
        (["show", "digits"], 0, 'sklearn.datasets is needed: pip install "risegrad[lab]"'),
        (["show", "texts.toml"], 2, 'is needed: pip install "risegrad[language]"'),
    ],
    "run": [
        (["run", "digits"], 2, 'timm is needed for ViTs: pip install "risegrad[vision]"'),
        (["run", "digits"], 2, 'sklearn.datasets is needed: pip install "risegrad[lab]"'),
        (["run", "digits", "--engine", "ray"], 2, "ray is needed for --engine ray: pip install"),
        (["run", "digits", "--track", "tensorboard"], 2, "tensorboard is needed for --track tens"),
    ],
    "report": [(["report", "."], 1, 'altair is needed for charts: pip install "risegrad[lab]"')],
    "frontier": [
        (
            ["frontier", "mlp", "--keep", "a.npz", "--new", "b.npz"],
            2,
            "altair is needed for rise frontier",
        )
    ],
    "tune": [(["tune", "model", "--new", "support"], 2, "peft is needed for rise tune: pip")],
    "calibrate": [(["calibrate", "--model", "vit_tiny_patch16_224"], 2, 'pip install "risegrad[')],
    "diagnose": [(["diagnose", "digits"], 1, 'pip install "risegrad[')],
    "local": [(["local", "digits"], 1, 'pip install "risegrad[')],
    "sandbox": [(["sandbox"], 1, 'tqdm is needed: pip install "risegrad[lab]"')],
}


def test_every_command_is_tried_without_extras() -> None:
    assert set(CORE_ONLY) == {command.NAME for command in commands()}


@pytest.mark.parametrize("command", CORE_ONLY)
def test_a_core_only_installation_names_the_extra(command: str, core_only: Core) -> None:
    done = {}
    for argv, code, words in CORE_ONLY[command]:
        if tuple(argv) not in done:
            done[tuple(argv)] = core_only(*argv)
        found = done[tuple(argv)]
        text = found.stdout + found.stderr
        assert (found.returncode, words in text) == (code, True), text
        assert "Traceback" not in text


@pytest.mark.parametrize("argv", [["list"], ["show", "digits", "--json"]])
def test_a_reader_who_has_gone_is_no_news(argv: list[str]) -> None:
    """As in ``rise show ... | head``: no traceback, and nothing from Python at its end either."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "riselab.cli", *argv]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_interrupt_while_things_are_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "-m", "riselab.cli", "run", "digits", "--plugin", "slow"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "rise run: interrupted\n")
