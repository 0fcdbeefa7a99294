"""What a shaper will do to each block, in words and numbers that people can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch

from risegrad.layout import BlockRow, Layout
from risegrad.shapers import Shaper

MOST_ROWS = 40


def summary(shaper: Shaper, layout: Layout, on: str, absent: Sequence[int]) -> str:
    """A table of blocks (dimension, q, tau, mean factor) and one line about all of them.

    The first ``absent`` elements of each parameter are not counted: they take no part now.
    """
    rows = _taking_part(layout, absent)
    width = max(len("block"), *(len(_label(row)) for row in rows))
    head = f"{'block':<{width}}  {'dimension':>10}  {'q':>4}  {'tau':>7}  {'mean factor':>11}"
    shown = [_line(row, width) for row in rows]
    if len(shown) > MOST_ROWS:
        half = MOST_ROWS // 2
        shown = [*shown[:half], f"... {len(shown) - 2 * half} more ...", *shown[-half:]]
    return "\n".join([_title(shaper, on), head, *shown, totals(rows), *_note(absent)])


def totals(rows: Sequence[BlockRow]) -> str:
    """The blocks in one line: how many there are, and how much of the mean is left."""
    factors = [row.mean_factor for row in rows]
    taus = [row.tau for row in rows]
    blocks, elements = sum(row.count for row in rows), sum(row.count * row.d for row in rows)
    return (
        f"{blocks:,} blocks, {elements:,} elements; "
        f"mean factor {min(factors):.4f} to {max(factors):.4f} (median {median(factors):.4f}); "
        f"tau {min(taus):.4f} to {max(taus):.4f}"
    )


def _taking_part(layout: Layout, absent: Sequence[int]) -> tuple[BlockRow, ...]:
    """The rows with their present dimensions; without those of which nothing takes part."""
    if not any(absent):
        return layout.rows
    counts = [row.count for row in layout.rows]
    sizes = torch.split(layout.taking_part(absent).long(), counts)
    rows = [
        replace(row, d=d, count=count)
        for row, present in zip(layout.rows, sizes, strict=True)
        for d, count in sorted(Counter(present.tolist()).items(), reverse=True)
        if d
    ]
    return tuple(rows) or layout.rows


def _note(absent: Sequence[int]) -> list[str]:
    if not any(absent):
        return []
    left = f"{sum(absent):,} elements are frozen or left out"
    return [f"d counts what has a gradient in a step: {left}"]


def _title(shaper: Shaper, on: str) -> str:
    exempt = f", exempt: {', '.join(shaper.exempt)}" if shaper.exempt else ""
    stream = f", stream {shaper.stream}" if shaper.stream else ""
    return f"{type(shaper).__name__} on {on}, seed {shaper.seed}{stream}{exempt}"


def _label(row: BlockRow) -> str:
    return row.name if row.count == 1 else f"{row.name} ({row.count:,} chunks)"


def _line(row: BlockRow, width: int) -> str:
    return (
        f"{_label(row):<{width}}  {row.d:>10,}  {row.q:>4}  "
        f"{row.tau:>7.4f}  {row.mean_factor:>11.4f}"
    )
