"""What the commands about curvature share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from risegrad.checks import check_choice
from risegrad.optional import need

if TYPE_CHECKING:
    from risegrad.curvature.settings import Settings


def add_paths(parser: argparse.ArgumentParser) -> None:
    """A file of settings, and the paths that belong to the machine and not to the file."""
    parser.add_argument("config", metavar="CONFIG", help="a TOML file; the documentation shows one")
    parser.add_argument(
        "--model", metavar="PATH", help="weights or model folder of the [model] table"
    )
    parser.add_argument("--data", metavar="PATH", help="data of the [data] table")


def add_output(parser: argparse.ArgumentParser, default: str) -> None:
    out = "folder for the results, made if need be (default %(default)s)"
    parser.add_argument("--out", default=default, metavar="DIR", help=out)
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")


def checked_settings(args: argparse.Namespace) -> Settings:
    """The file with the paths of the command line; all that can be wrong before any work."""
    from risegrad.curvature.budget import Budget
    from risegrad.curvature.operators import KINDS
    from risegrad.curvature.settings import load, with_paths
    from risegrad.shapers import Rise

    settings = with_paths(load(Path(args.config)), args.model, args.data)
    Budget.of(settings.diagnosis.budget)
    Rise(**asdict(settings.rise))
    for kind in (settings.diagnosis.curvature, *settings.validation.curvatures):
        check_choice("curvature", kind, KINDS)
    return settings


def planned(
    args: argparse.Namespace, execute: Callable[[Settings, Path, bool], int]
) -> Callable[[], int]:
    """The job of a command with these arguments, checked: its settings, the folder, how quiet."""
    settings = checked_settings(args)
    out, quiet = Path(args.out), bool(args.quiet)
    return lambda: execute(settings, out, quiet)


@contextmanager
def counting(quiet: bool, words: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for (done, most)."""
    tqdm = need("tqdm", "lab")
    hidden = quiet or not sys.stderr.isatty()
    with tqdm.tqdm(desc=words, disable=hidden, file=sys.stderr, unit="product") as bar:

        def show(done: int, most: int) -> None:
            bar.total = most
            bar.update(done - bar.n)

        yield show


@contextmanager
def telling(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line that says what is being done."""
    tqdm = need("tqdm", "lab")
    hidden = quiet or not sys.stderr.isatty()
    with tqdm.tqdm(disable=hidden, file=sys.stderr, bar_format="{elapsed} {desc}") as bar:
        yield bar.set_description_str
