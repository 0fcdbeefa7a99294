"""``rise completion``: a script that teaches a shell to complete this command."""

import argparse
from collections.abc import Callable, Iterator

from risegrad.common.optional_imports import need

SHELLS = ("bash", "zsh", "fish")
ASK = "rise list experiments --names 2>/dev/null"
BASH_EXPERIMENTS = f"""\
_rise_experiments() {{
    compgen -W "$({ASK})" -- "$1"
    compgen -f -- "$1"
}}"""
ZSH_EXPERIMENTS = f"""\
_rise_experiments() {{
    compadd -- ${{(f)"$({ASK})"}}
    _files -g '*.toml'
}}"""
PREAMBLE = {"bash": BASH_EXPERIMENTS, "zsh": ZSH_EXPERIMENTS}
EXPERIMENTS = {
    "bash": "_rise_experiments",
    "zsh": "_rise_experiments",
    "fish": f"({ASK}) (__fish_complete_path)",
}
HEADS = {
    "bash": "# bash completion for rise; in ~/.bashrc: source <(rise completion bash)\n",
    "zsh": "",  # its first line must be "#compdef rise"
    "fish": "# fish: rise completion fish > ~/.config/fish/completions/rise.fish\n",
}


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Commands, options and choices by shtab; what a value is, by its name in the help."""
    shtab = need("shtab", "lab", "rise completion")
    kinds = dict.fromkeys(("FILE", "PATH", "RUNS"), shtab.FILE)
    kinds |= {"DIR": shtab.DIRECTORY, "EXPERIMENT": EXPERIMENTS}
    for action in arguments(parser):
        if action.choices is None and action.metavar in kinds:
            action.complete = kinds[action.metavar]  # type: ignore[attr-defined]
    text: str = shtab.complete(parser, shell=shell, preamble=PREAMBLE)
    return f"{HEADS[shell]}{text}"


def arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of the program and of its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from arguments(below)
        else:
            yield action


NAME = "completion"
SUMMARY = "print a script for completion in bash, zsh or fish"
DESCRIPTION = """\
Prints a script that teaches a shell to complete commands, options, their values and the names of
experiments. Load it once (bash: source <(rise completion bash)), or in the shell's start file.
Needs shtab: pip install "risegrad[lab]"."""
EXAMPLES: tuple[str, ...] = (
    "rise completion bash",
    "rise completion zsh",
    "rise completion fish",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise completion``."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """The job: print the script."""

    def job() -> int:
        print(script(args.root, args.shell), end="")
        return 0

    return job
