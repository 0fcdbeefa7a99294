"""``rise list``: what experiment files can name, and the experiments of the package."""

import argparse
import sys
import textwrap
from collections.abc import Callable
from shutil import get_terminal_size

from riselab.commands.arguments import add_plugin, load_plugins

NAME = "list"
SUMMARY = "list hosts, rules, streams, additions, models, trackers, experiments"
DESCRIPTION = """\
Lists what an experiment file can name, and the package's own experiments. Entries from plugins are
marked [name version]."""
EXAMPLES: tuple[str, ...] = (
    "rise list",
    "rise list experiments",
    "rise list rules",
    "rise list rules --plugin my_rules.py",
)

KINDS = ("hosts", "rules", "streams", "additions", "models", "trackers", "experiments")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise list``."""
    text = f"only these: {', '.join(KINDS)}"
    parser.add_argument("kind", nargs="?", choices=KINDS, metavar="KIND", help=text)
    add_plugin(parser)


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """The job: print one kind, or all."""
    load_plugins(args)
    return lambda: execute([args.kind] if args.kind else list(KINDS))


def execute(kinds: list[str]) -> int:
    """Print what there is, and return the exit code."""
    sections = {kind: entries(kind) for kind in kinds}
    texts = [_section(kind, section) for kind, section in sections.items() if section]
    print("\n\n".join(texts) or f"there are no {' or '.join(kinds)}")
    return 0


def entries(kind: str) -> dict[str, str]:
    """Name and one line each."""
    from riselab.experiments.file import library
    from riselab.pages.text import visible

    if kind == "experiments":
        return {
            visible(name): visible(one.question or one.title) for name, one in library().items()
        }
    return registered().get(kind, {})


def registered() -> dict[str, dict[str, str]]:
    """What the registers hold, by kind."""
    from riselab import plugins
    from riselab.continual.runs import catalogue
    from riselab.running import trackers  # noqa: F401, importing it fills the register

    return catalogue() | {"trackers": plugins.TRACKERS.lines()}


def _section(kind: str, section: dict[str, str]) -> str:
    width = max(map(len, section)) + 2
    room = max(get_terminal_size().columns - width - 2, 40)
    lines = [kind]
    for name, text in section.items():
        first, *rest = _fitted(kind, text, room) or [""]
        lines.append(f"  {name:<{width}}{first}".rstrip())
        lines += [f"  {'':<{width}}{part}" for part in rest]
    return "\n".join(lines)


def _fitted(kind: str, text: str, room: int) -> list[str]:
    """What has room in the terminal; a pipe has room for everything.

    What an experiment asks is read to its end; of the others one line is enough.
    """
    if not sys.stdout.isatty():
        return [text]
    if kind == "experiments":
        return textwrap.wrap(text, room)
    return [textwrap.shorten(text, room, placeholder=" ...")]
