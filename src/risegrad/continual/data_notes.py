"""Notes on the data that go into the record: what a reader of the numbers has to know.

A stream of any domain carries them in ``notes``, the result has them, and the report shows them.
"""

from __future__ import annotations

from collections.abc import Iterable

from risegrad.core.blocks import listing

Counts = Iterable[tuple[str, int]]
"""Names of classes or tasks, and how many examples each has."""


def too_few(setting: str, wanted: int, there: Counts) -> tuple[str, ...]:
    """A note if a setting asks for more examples than there are; ``wanted`` 0 asks for all.

    >>> too_few("train_size", 300, [("CB", 250), ("RTE", 2000)])
    ('train_size=300 is more than there is: CB has 250',)
    """
    short = [f"{name} has {count}" for name, count in there if count < wanted]
    return (f"{setting}={wanted} is more than there is: {listing(short)}",) if short else ()


def untested(there: Counts, task: str = "") -> tuple[str, ...]:
    """A note if there are classes without a test example: nothing says how well they are known.

    >>> untested([("entailment", 23), ("neutral", 0)], "CB")
    ('CB: no test examples for neutral',)
    """
    without = [name for name, count in there if not count]
    where = f"{task}: " if task else ""
    return (f"{where}no test examples for {listing(without)}",) if without else ()
