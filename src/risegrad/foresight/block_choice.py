"""Which q, or which block size, leaves a wanted part of the mean: ``a = sqrt(q/(q+d+1))``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from risegrad.common.checks import check_probability
from risegrad.core.blocks import exempted, resolve_blocks
from risegrad.theory.calibration import block_size_for, q_for

if TYPE_CHECKING:
    from risegrad.core.shapers import Shaper
    from risegrad.foresight.model_shapes import Lora


@dataclass(frozen=True)
class ChoiceRow:
    """A block; the pieces of a chunked parameter share a row."""

    name: str
    d: int
    q: int
    count: int
    tau: float
    mean_factor: float


@dataclass(frozen=True)
class CalibrationTable:
    """All blocks of a model, and what a wanted mean factor would take."""

    model: str
    parameters: int
    rows: tuple[ChoiceRow, ...]
    wanted: float
    advice: str

    def __str__(self) -> str:
        from risegrad.common.text_columns import text_columns

        head = ("block", "dimension", "q", "tau", "mean factor", "rate")
        cells = [
            (_label(name, row, times), f"{row.d:,}", str(row.q), f"{row.tau:.4f}",
             f"{row.mean_factor:.4f}", f"x {1 / row.mean_factor:.3g}")
            for (name, row), times in identical(self.rows).items()
        ]  # fmt: skip
        blocks = sum(row.count for row in self.rows)
        title = f"{self.model}: {blocks:,} blocks, {self.parameters:,} parameters"
        return "\n".join([title, *text_columns([head, *cells]), self.advice])


def identical(rows: tuple[ChoiceRow, ...]) -> dict[tuple[str, ChoiceRow], int]:
    """Rows that differ in the numbers within their names only, such as those of a model's layers:
    one of each kind with the name that all share, and how many there are.

    >>> row = ChoiceRow("layers.0.q", 64, 4, 1, 0.93, 0.24)
    >>> list(identical((row, replace(row, name="layers.1.q"))).values())
    [2]
    """
    found: dict[tuple[str, ChoiceRow], list[ChoiceRow]] = {}
    for row in rows:
        name = re.sub(r"(?<![^.])\d+(?![^.])", "*", row.name)
        found.setdefault((name, replace(row, name="")), []).append(row)
    return {
        (name if len(alike) > 1 else alike[0].name, alike[0]): len(alike)
        for (name, _), alike in found.items()
    }


def _label(name: str, row: ChoiceRow, times: int) -> str:
    notes = [f"{times:,} of them"] if times > 1 else []
    if row.count > 1:
        notes.append(f"{row.count:,} chunks{' each' if times > 1 else ''}")
    return f"{name} ({', '.join(notes)})" if notes else name


def calibration_table(
    model: str, lora: Lora | None, shaper: Shaper, wanted: float
) -> CalibrationTable:
    """The table for a model of which only the shapes are read."""
    from risegrad.core.block_layout import make_layout
    from risegrad.core.shapers import q_of_blocks
    from risegrad.foresight.model_shapes import lora_shapes, model_kind, model_shapes

    check_probability("mean_factor", wanted)
    if shaper.blocks == "group":
        raise ValueError("blocks 'group' needs an optimizer's groups; choose another kind here")
    shapes = model_shapes(model)
    if lora is not None:
        shapes = lora_shapes(shapes, lora, "" if lora.targets else model_kind(model))
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    for name in exempted(sizes, shaper.exempt):
        del sizes[name]
    blocks = resolve_blocks(shaper.blocks, dict.fromkeys(sizes, 0))
    layout = make_layout(blocks, q_of_blocks(shaper, blocks, sizes), sizes)
    rows = tuple(ChoiceRow(r.name, r.d, r.q, r.count, r.tau, r.mean_factor) for r in layout.rows)
    return CalibrationTable(model, sum(sizes.values()), rows, wanted, _advice(rows, wanted))


def _advice(rows: tuple[ChoiceRow, ...], wanted: float) -> str:
    typical, q = int(median(row.d for row in rows)), rows[0].q
    factors = [row.mean_factor for row in rows]
    return (
        f"mean factor {min(factors):.4f} to {max(factors):.4f} (median {median(factors):.4f}); "
        f"{wanted:g} would need q={q_for(wanted, typical):,} in a block of {typical:,} (the "
        f"median), or blocks of at most {block_size_for(wanted, q):,} with q={q}; "
        f"Rise(keep={wanted:g}) chooses both. rate: what to multiply plain training's rate by for "
        "the same progress of first order (of SGD, or on the update; in front of Adam about that)"
    )
