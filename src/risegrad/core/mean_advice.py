"""What to say when a shaper leaves so little of the mean that a model would hardly learn."""

from __future__ import annotations

from collections.abc import Sequence

from risegrad.core.block_layout import BlockRow
from risegrad.core.shapers import Shaper
from risegrad.theory.calibration import q_for

LITTLE = 0.05
"""A mean factor below this is hardly a gradient any more: tried with the usual rates, a model with
0.004 had learned nothing when plain training was done."""
SHOWN = 0.5
"""What the way out keeps."""


def little_is_left(shaper: Shaper, rows: Sequence[BlockRow]) -> str | None:
    """A warning with numbers and the way out, if most elements have a mean factor below 0.05."""
    if shaper.q is None or getattr(shaper, "mean", "scaled") == "exact":
        return None
    elements = sum(row.d * row.count for row in rows)
    low = [row for row in rows if row.mean_factor < LITTLE]
    few = sum(row.d * row.count for row in low)
    if 2 * few <= elements:
        return None
    middle = _middle(rows)
    return (
        f"{type(shaper).__name__} leaves little to learn from: {few / elements:.0%} of "
        f"{elements:,} elements have a mean factor below {LITTLE:g} ({middle.mean_factor:.4f} in "
        f"the middle, a block of {middle.d:,} with q={middle.q}), so that much of each gradient's "
        f"mean is left and the rest is noise. {_way_out(shaper, middle)}; or raise the learning "
        "rate and compare. print(handle) shows every block"
    )


def _way_out(shaper: Shaper, middle: BlockRow) -> str:
    if not shaper.needs_q:
        return f"q={q_for(SHOWN, middle.d):,} would leave half of it there, q=None all"
    return (
        f"{type(shaper).__name__}(keep={SHOWN:g}) chooses blocks and q that leave half of it "
        f"(by hand: smaller blocks, blocks=64, or a larger q)"
    )


def _middle(rows: Sequence[BlockRow]) -> BlockRow:
    """The row of the middle element, in the order of the mean factor."""
    ordered = sorted(rows, key=lambda row: row.mean_factor)
    half, seen = sum(row.d * row.count for row in rows) / 2, 0
    for row in ordered:
        seen += row.d * row.count
        if seen >= half:
            return row
    return ordered[-1]
