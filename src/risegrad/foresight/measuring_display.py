"""Bars and lines that say how far a measurement is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from risegrad.common.optional_imports import need


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
