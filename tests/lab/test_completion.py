"""Completion: the script for bash is run by bash; those for zsh and fish where they are."""

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from risegrad.cli import COMMANDS, build_parser, main
from risegrad.lab.commands.completion_command import arguments, script

BASH = shutil.which("bash")

ASK = """
source {script}
rise() {{ printf 'digits\\ncifar100-inc10\\n'; }}
COMP_WORDS=({words} "$CURRENT")
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_shtab_rise
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "rise.bash").write_text(script(build_parser(), "bash"))
    (tmp_path / "out").mkdir()
    (tmp_path / "my file.toml").touch()
    return tmp_path


def offers(place: Path, line: str) -> set[str]:
    """What bash would offer for a line; its last word is the one at the cursor."""
    *words, current = line.split(" ")
    text = ASK.format(script=place / "rise.bash", words=" ".join(words))
    done = subprocess.run(
        ["bash", "--norc", "-c", text],
        cwd=place, env={"CURRENT": current, "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return {line for line in done.stdout.splitlines() if line}


needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash")


@needs_bash
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rise r", {command.NAME for command in COMMANDS if command.NAME.startswith("r")}),
        ("rise --v", {"--version"}),
        ("rise run --eng", {"--engine"}),
        ("rise run --engine ", {"local", "ray"}),
        ("rise run --engine r", {"ray"}),
        ("rise run d", {"digits"}),
        ("rise --debug run c", {"cifar100-inc10"}),
        ("rise show my", {"my file.toml"}),
        ("rise run digits --out o", {"out"}),
        ("rise run digits --out m", set()),
        ("rise run digits --workers ", set()),
        ("rise run digits --retry-failed --tra", {"--track"}),
        ("rise list s", {"settings", "streams"}),
        ("rise completion ", {"bash", "zsh", "fish"}),
        ("rise sandbox --lar", {"--large-d"}),
        ("rise run --work", {"--workers"}),
    ],
)
def test_bash_offers_what_fits(place: Path, line: str, expected: set[str]) -> None:
    assert offers(place, line) == expected


@needs_bash
def test_bash_offers_all_commands_and_registers(place: Path) -> None:
    assert {command.NAME for command in COMMANDS} <= offers(place, "rise ")
    done = subprocess.run(
        ["bash", "--norc", "-c", f"source {place / 'rise.bash'}; complete -p rise"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.endswith("-F _shtab_rise rise\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_is_in_every_script(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(command.NAME in text for command in COMMANDS)
    shown = [a for a in arguments(build_parser()) if a.help != argparse.SUPPRESS]
    for option in (option for action in shown for option in action.option_strings):
        long = f"-l {option[2:]} " if shell == "fish" and option[:2] == "--" else option
        assert (f"-s {option[1:]}" if shell == "fish" and option[:2] != "--" else long) in text
    assert "rise list experiments --names" in text, "experiments are asked for when they are needed"
    assert "--workload" not in text, "what the help does not show is not offered"
    if found := shutil.which(shell):  # at least it can be parsed
        subprocess.run([found, "-n"], input=text, text=True, check=True, capture_output=True)


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
