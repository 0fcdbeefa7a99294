"""``rise list``: what experiment files can name, and the experiments of the package."""

import argparse
import importlib
import textwrap
from collections.abc import Callable
from shutil import get_terminal_size

NAME = "list"
SUMMARY = "list hosts, rules, streams, additions and experiments, one line each"
DESCRIPTION = "Lists what an experiment file can name, and the experiments of the package."
EXAMPLES: tuple[str, ...] = ("rise list", "rise list experiments", "rise list rules")

KINDS = ("hosts", "rules", "streams", "additions", "experiments")
CATALOGUE = "risegrad.continual.catalogue"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise list``."""
    text = f"only these: {', '.join(KINDS)}"
    parser.add_argument("kind", nargs="?", choices=KINDS, metavar="KIND", help=text)
    parser.add_argument("--names", action="store_true", help="the names only, for scripts")


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """The job: print one kind, or all."""
    return lambda: execute([args.kind] if args.kind else list(KINDS), args.names)


def execute(kinds: list[str], names: bool) -> int:
    """Print what there is, and return the exit code."""
    sections = {kind: entries(kind) for kind in kinds}
    if names:
        print("\n".join(name for section in sections.values() for name in section))
        return 0
    texts = [_section(kind, section) for kind, section in sections.items() if section]
    print("\n\n".join(texts) or f"there are no {' or '.join(kinds)}")
    return 0


def entries(kind: str) -> dict[str, str]:
    """Name and one line each."""
    from risegrad.lab.experiments.experiment_library import titles
    from risegrad.pages.page_text import visible

    if kind == "experiments":
        return {visible(name): visible(title) for name, title in titles().items()}
    found: dict[str, dict[str, str]] = importlib.import_module(CATALOGUE).catalogue()
    return found.get(kind, {})


def _section(kind: str, section: dict[str, str]) -> str:
    width = max(map(len, section)) + 2
    room = max(get_terminal_size().columns - width - 2, 40)
    lines = [
        f"  {name:<{width}}{textwrap.shorten(text, room, placeholder=' ...')}".rstrip()
        for name, text in section.items()
    ]
    return "\n".join([kind, *lines])
