"""What the commands about curvature share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from risegrad.common.checks import check_choice
from risegrad.common.optional_imports import need

if TYPE_CHECKING:
    from risegrad.foresight.foresight_settings import ForesightSettings


def add_paths(parser: argparse.ArgumentParser) -> None:
    """A file of settings, and the paths that belong to the machine and not to the file."""
    parser.add_argument("config", metavar="CONFIG", help="a TOML file; the documentation shows one")
    parser.add_argument(
        "--model", metavar="PATH", help="weights or model folder of the [model] table"
    )
    parser.add_argument("--data", metavar="PATH", help="data of the [data] table")


def add_output(parser: argparse.ArgumentParser, default: str) -> None:
    """``--out`` and ``--quiet``."""
    out = "folder for the results, created if missing (default %(default)s)"
    parser.add_argument("--out", default=default, metavar="DIR", help=out)
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")


def checked_settings(args: argparse.Namespace) -> ForesightSettings:
    """The file with the paths of the command line; all that can be wrong before any work."""
    from risegrad.core.shapers import Rise
    from risegrad.curvature.estimates.product_budget import ProductBudget
    from risegrad.curvature.operators.products import KINDS
    from risegrad.foresight.foresight_settings import load, with_paths

    settings = with_paths(load(Path(args.config)), args.model, args.data)
    ProductBudget.of(settings.diagnosis.budget)
    Rise(**asdict(settings.rise))
    for kind in (settings.diagnosis.curvature, *settings.validation.curvatures):
        check_choice("curvature", kind, KINDS)
    return settings


def planned(
    args: argparse.Namespace, execute: Callable[[ForesightSettings, Path, bool], int]
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
def telling(quiet: bool) -> Iterator[Callable[[str, str], None]]:
    """A line that says what is being done and how far it is; in a log, a line for each stage."""
    tqdm = need("tqdm", "lab")
    log = not sys.stderr.isatty()
    with tqdm.tqdm(disable=quiet or log, file=sys.stderr, bar_format="{elapsed} {desc}") as bar:
        stages: list[str] = []

        def tell(stage: str, detail: str) -> None:
            bar.set_description_str(f"{stage} {detail}".strip())
            if log and not quiet and stage not in stages:
                print(stage, file=sys.stderr, flush=True)
            stages.append(stage)

        yield tell
