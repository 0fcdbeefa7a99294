"""``rise calibrate``: what RISE leaves of the mean in every block, and what a memory would take.

From shapes alone: ``a = sqrt(q/(q+d+1))``, bytes, and multiplications per step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from risegrad.common.checks import check_positive_int, check_probability
from risegrad.common.text_columns import text_columns
from risegrad.core.blocks import exempted, matches, resolve_blocks
from risegrad.curvature.memory.covered_layers import sizes_of
from risegrad.curvature.memory.memory import size
from risegrad.curvature.memory.memory_size import NUMBER, factor_bytes
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


RANKS = (8, 16, 64)
TOKENS = 2048
"""Tokens (of images: patches) in a step, if nothing else is said: 8 texts of 256."""


@dataclass(frozen=True)
class LayerShape:
    """A layer as a memory sees it: its kind, and its weight's shape as it is stored."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Inputs and outputs of the map."""
        return sizes_of(self.kind, self.shape)

    def bytes(self, rank: int) -> int:
        """What its two factors take; tokens of an embedding and norms are held as diagonals."""
        inputs, outputs = self.sizes
        if self.kind == "norm":
            return NUMBER * 2 * inputs
        first = NUMBER * inputs if self.kind == "embedding" else factor_bytes(inputs, rank)
        return first + factor_bytes(outputs, rank)

    def own(self, tokens: int, trained: bool) -> int:
        """Multiplications forward and backward; a frozen weight has no gradient of its own."""
        inputs, outputs = self.sizes
        if self.kind in ("embedding", "norm"):
            return tokens * outputs
        return (3 if trained else 2) * tokens * inputs * outputs

    def filter(self, rank: int) -> int:
        """Multiplications that filter the step of the whole weight, from both sides."""
        inputs, outputs = self.sizes
        if self.kind == "norm":
            return inputs
        right = 1 if self.kind == "embedding" else _across(inputs, rank)
        return inputs * outputs * (right + _across(outputs, rank))

    def lora_filter(self, rank: int, r: int) -> int:
        """The same for LoRA's ``A`` and ``B``, with the ``r x r`` sides that each step makes."""
        inputs, outputs = self.sizes
        wide = r * (inputs * _across(inputs, rank) + outputs * _across(outputs, rank))
        # Once to filter and once for A S A' and B'DB, which are then applied: 2 r^2 (in + out).
        return 2 * wide + 2 * r * r * (inputs + outputs)


def _across(dim: int, rank: int) -> int:
    """Multiplications per number to apply a factor: into its eigenvectors and back, or in full."""
    return dim if rank >= dim else 2 * rank


@dataclass(frozen=True)
class EstimatedGroup:
    """Layers that differ in their number alone; by rank, as ``ranks`` of the estimate has them."""

    name: str
    layers: int
    bytes: tuple[int, ...]
    time: tuple[float, ...]
    """Multiplications that are added to each step, over the layers' own."""


@dataclass(frozen=True)
class MemoryEstimate:
    """A memory of a model in one way of training."""

    way: str
    tokens: int
    ranks: tuple[int, ...]
    groups: tuple[EstimatedGroup, ...]
    total: EstimatedGroup

    def __str__(self) -> str:
        head = [f"memory of {self.way}", "layers"]
        head += [f"rank {rank}" for rank in self.ranks] + [f"time {rank}" for rank in self.ranks]
        rows = [_cells(group) for group in (*self.groups, self.total)]
        note = f"time: multiplications added to a step of {self.tokens:,} tokens over the layers'"
        return "\n".join([*text_columns([head, *rows]), f"{note} own"])


def _cells(group: EstimatedGroup) -> list[str]:
    sizes = [size(count) for count in group.bytes]
    return [group.name, str(group.layers), *sizes, *(f"{share:.2%}" for share in group.time)]


def full_estimate(
    layers: Iterable[LayerShape], tokens: int = TOKENS, ranks: Sequence[int] = RANKS
) -> MemoryEstimate:
    """For a training of all weights."""
    return _estimate("full fine-tuning", list(layers), None, tokens, ranks)


def lora_estimate(
    layers: Iterable[LayerShape],
    r: int,
    targets: Sequence[str],
    tokens: int = TOKENS,
    ranks: Sequence[int] = RANKS,
) -> MemoryEstimate:
    """For a LoRA of rank ``r`` on the layers whose names end with one of ``targets``."""
    patterns = [pattern for target in targets for pattern in (target, f"*.{target}")]
    adapted = [
        layer
        for layer in layers
        if layer.kind in ("linear", "conv1d") and matches(layer.name, patterns)
    ]
    if not adapted:
        raise ValueError(f"targets: no layer is called {' or '.join(targets)}")
    return _estimate(f"LoRA r={r} on {', '.join(targets)}", adapted, r, tokens, ranks)


def _estimate(
    way: str, layers: list[LayerShape], r: int | None, tokens: int, ranks: Sequence[int]
) -> MemoryEstimate:
    check_positive_int("tokens", tokens)
    grouped: dict[str, list[LayerShape]] = {}
    for layer in layers:
        grouped.setdefault(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", layer.name), []).append(layer)
    groups = [_group(name, own, r, tokens, ranks) for name, own in grouped.items()]
    total = _group("in all", layers, r, tokens, ranks)
    return MemoryEstimate(way, tokens, tuple(ranks), tuple(groups), total)


def _group(
    name: str, layers: list[LayerShape], r: int | None, tokens: int, ranks: Sequence[int]
) -> EstimatedGroup:
    own = sum(layer.own(tokens, r is None) for layer in layers)
    added = [
        sum(layer.filter(rank) if r is None else layer.lora_filter(rank, r) for layer in layers)
        for rank in ranks
    ]
    taken = (sum(layer.bytes(rank) for layer in layers) for rank in ranks)
    return EstimatedGroup(name, len(layers), tuple(taken), tuple(count / own for count in added))
