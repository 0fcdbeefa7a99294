"""How far ``remember`` is: a bar by default, on a terminal or where it takes long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from risegrad.common.optional_imports import absent, need
from risegrad.curvature.memory.many_ranks import Ranks

Progress = Callable[[int, int | None], None]
"""Called with the examples seen and those asked for (None: all there are)."""
SOON, LATE = 1.0, 10.0
"""Seconds until a bar is shown on a terminal, and until a file of output gets its first line."""


@contextmanager
def shown(progress: Progress | bool, examples: int | None, ranks: Ranks) -> Iterator[Progress]:
    """What to call after each batch; of several processes only the first shows a bar."""
    if callable(progress):
        yield progress
    elif not progress or ranks.own or absent("tqdm"):
        yield lambda seen, wanted: None
    else:
        wait = SOON if sys.stderr.isatty() else LATE
        bar = need("tqdm.auto", "lab").tqdm(
            total=examples, desc="remember", unit=" examples", delay=wait, mininterval=wait / 10
        )
        with bar:
            yield lambda seen, wanted: bar.update(seen - bar.n)
