"""``rise completion``: a script that teaches a shell to complete this command."""

import argparse
from collections.abc import Callable

NAME = "completion"
SUMMARY = "print a script for completion in bash, zsh or fish"
DESCRIPTION = """\
Prints a script that teaches a shell to complete commands, options, their values and the names of
experiments. Load it once (bash: source <(rise completion bash)), or in the shell's start file."""
EXAMPLES: tuple[str, ...] = (
    "rise completion bash",
    "rise completion zsh",
    "rise completion fish",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    shells = ["bash", "zsh", "fish"]
    parser.add_argument("shell", choices=shells, metavar="SHELL", help=", ".join(shells))


def plan(args: argparse.Namespace) -> Callable[[], int]:
    def job() -> int:
        from risegrad.lab.completion import script

        print(script(args.root, args.shell), end="")
        return 0

    return job
