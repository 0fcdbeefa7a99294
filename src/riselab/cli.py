"""The command ``rise``: one small module per subcommand, and everything they share.

A subcommand is a module with the names of ``CommandModule``; listing it in ``commands`` is all it
takes. Such a module imports nothing heavy at its top, so that ``rise --help`` stays quick.

Exit codes: 0 done, 1 the work failed, 2 the arguments are wrong or something that they need is
missing, 130 interrupted, 141 output pipe closed.
"""

import argparse
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn, Protocol

from risegrad.common.imports import explained

DONE, FAILED, USAGE, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141


class CommandModule(Protocol):
    """What a subcommand's module offers.

    ``plan`` reads the arguments and returns the job. A ``ValueError`` or ``TypeError`` from
    ``plan`` is a mistake in the arguments (exit code 2); whatever the job raises is a failure (1).
    """

    NAME: str
    SUMMARY: str
    DESCRIPTION: str
    EXAMPLES: tuple[str, ...]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def plan(self, args: argparse.Namespace) -> Callable[[], int]:
        """Check the arguments and return the job, which returns the exit code."""


def commands() -> tuple[CommandModule, ...]:
    """All subcommands; imported here, where an interrupt is already one line."""
    from riselab.commands import calibrate, diagnose, frontier, list, local, report, run, show, tune
    from riselab.sandbox import command as sandbox

    return list, show, run, report, tune, frontier, calibrate, diagnose, local, sandbox


DESCRIPTION = """\
risegrad adapts pretrained models to new tasks and keeps what they know. This command fine-tunes
chat models, compares methods on your model and data, runs experiments, and makes pages of the
results. Start with 'tune' for a chat model, and with 'frontier' to compare methods.

An experiment is a TOML file: a stream of tasks, a model, and one row for each method. 'list' shows
the parts that a file can use, 'show' what would run; 'run' runs it (stop it at any time, the same
command continues), and 'report' makes a page, with the paper's numbers beside ours."""


class _Parser(argparse.ArgumentParser):
    """Errors in two lines: what is wrong, and where to read more."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: error: {message}\nSee '{self.prog} --help'.\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of ``rise`` with all its subcommands."""
    known = commands()
    parser = _Parser(
        prog="rise",
        description=DESCRIPTION,
        epilog=_examples([command.EXAMPLES[0] for command in known], "rise COMMAND --help"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rise {_version()}")
    _add_debug(parser, default=False)
    parsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in known:
        _add_command(parsers, command, parser)
    return parser


def _add_command(
    parsers: "argparse._SubParsersAction[_Parser]", command: CommandModule, root: _Parser
) -> None:
    parser = parsers.add_parser(
        command.NAME,
        help=command.SUMMARY,
        description=command.DESCRIPTION,
        epilog=_examples(command.EXAMPLES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    # Suppressed, so that a --debug before the subcommand is not overwritten by this one's default.
    _add_debug(parser, default=argparse.SUPPRESS)
    parser.set_defaults(plan=command.plan, parser=parser, root=root)


def _add_debug(parser: argparse.ArgumentParser, *, default: object) -> None:
    parser.add_argument(
        "--debug", action="store_true", default=default, help="show the traceback of an error"
    )


def _examples(examples: Sequence[str], more: str | None = None) -> str:
    lines = textwrap.indent("\n".join(examples), "  ")
    hint = f"\n\n'{more}' explains each command and its options." if more else ""
    return f"examples:\n{lines}{hint}"


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("risegrad")
    except PackageNotFoundError:
        return "(not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Prints errors instead of raising them."""
    try:
        code = _main(argv)
        if sys.stdout is not None:
            sys.stdout.flush()  # here and not at the very end, where Python complains by itself
        return code
    except KeyboardInterrupt:
        print("rise: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _mute()
        return UNREAD


def _main(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:  # argparse: help and version exit with 0, mistakes with 2
        return stop.code if isinstance(stop.code, int) else USAGE
    if args.command is None:
        parser.print_help()
        return USAGE
    try:
        return _run(args)
    except KeyboardInterrupt:
        print(f"rise {args.command}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    name = f"rise {args.command}"
    see, add = f"See '{name} --help'.", "Add --debug to see the traceback."
    try:
        job = args.plan(args)
    except ImportError as error:
        return _complain(name, explained(error), args.debug, USAGE, "")
    except (ValueError, TypeError) as error:
        return _complain(name, error, args.debug, USAGE, see)
    except Exception as error:
        return _complain(name, error, args.debug, FAILED, "")
    try:
        return int(job())
    except BrokenPipeError:
        raise
    except Exception as error:
        told = explained(error) if isinstance(error, ImportError) else error
        return _complain(name, told, args.debug, FAILED, add)


def _mute() -> None:
    """Nobody reads what we write: what is still to be written goes nowhere, without a word."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(nowhere, stream.fileno())


def _complain(name: str, error: Exception, debug: bool, code: int, hint: str) -> int:
    """The error in one line and a hint in another; the traceback before them where wanted."""
    if debug:
        traceback.print_exception(error)
        hint = ""
    # An exception without a message would otherwise leave the user with nothing.
    message = " ".join(str(error).split()) or type(error).__name__
    print(f"{name}: error: {message}", *filter(None, [hint]), sep="\n", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
