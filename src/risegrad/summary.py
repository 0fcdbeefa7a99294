"""What a shaper will do to each block, in words and numbers that people can read."""

from __future__ import annotations

from statistics import median

from risegrad.layout import BlockRow, Layout
from risegrad.shapers import Shaper

MOST_ROWS = 40


def summary(shaper: Shaper, layout: Layout, on: str) -> str:
    """A table of blocks (dimension, q, tau, mean factor) and one line about all of them."""
    rows = layout.rows
    width = max(len("block"), *(len(_label(row)) for row in rows))
    head = f"{'block':<{width}}  {'dimension':>10}  {'q':>4}  {'tau':>7}  {'mean factor':>11}"
    shown = [_line(row, width) for row in rows]
    if len(shown) > MOST_ROWS:
        half = MOST_ROWS // 2
        shown = [*shown[:half], f"... {len(shown) - 2 * half} more ...", *shown[-half:]]
    return "\n".join([_title(shaper, on), head, *shown, totals(layout)])


def totals(layout: Layout) -> str:
    """The layout in one line: how many blocks, and how much of the mean is left."""
    factors = [row.mean_factor for row in layout.rows]
    taus = [row.tau for row in layout.rows]
    return (
        f"{len(layout.d):,} blocks, {sum(layout.sizes):,} elements; "
        f"mean factor {min(factors):.4f} to {max(factors):.4f} (median {median(factors):.4f}); "
        f"tau {min(taus):.4f} to {max(taus):.4f}"
    )


def _title(shaper: Shaper, on: str) -> str:
    exempt = f", exempt: {', '.join(shaper.exempt)}" if shaper.exempt else ""
    return f"{type(shaper).__name__} on {on}, seed {shaper.seed}{exempt}"


def _label(row: BlockRow) -> str:
    return row.name if row.count == 1 else f"{row.name} ({row.count:,} chunks)"


def _line(row: BlockRow, width: int) -> str:
    return (
        f"{_label(row):<{width}}  {row.d:>10,}  {row.q:>4}  "
        f"{row.tau:>7.4f}  {row.mean_factor:>11.4f}"
    )
