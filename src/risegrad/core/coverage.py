"""What an attachment covers: the optimizer's parameters as they are now, laid out in blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor
from torch.optim import Optimizer

from risegrad.common.text_columns import text_columns
from risegrad.core.block_layout import BlockRow, Layout, make_layout
from risegrad.core.blocks import exempted, listing, resolve_blocks
from risegrad.core.parameter_names import held_by_name, with_late_names
from risegrad.core.shapers import Shaper, q_of_blocks
from risegrad.core.shards import check_whole
from risegrad.core.whole_steps import Tie

MOST_ROWS = 40
HEAD = ("block", "dimension", "q", "tau", "mean factor")
SIZES = 2
"""Columns of a table for a shaper that draws nothing."""


def summary(shaper: Shaper, layout: Layout, on: str, absent: Sequence[int]) -> str:
    """A table of blocks (dimension, q, tau, mean factor) and one line about all of them.

    The first ``absent`` elements of each parameter are not counted: they take no part now.
    """
    rows = taking_part(layout, absent)
    drawn = len(HEAD) if shaper.q is not None else SIZES
    head, *shown = text_columns([line[:drawn] for line in (HEAD, *map(_cells, rows))])
    if len(shown) > MOST_ROWS:
        half = MOST_ROWS // 2
        shown = [*shown[:half], f"... {len(shown) - 2 * half} more ...", *shown[-half:]]
    below = totals(rows) if shaper.q is not None else f"{_counts(rows)}; nothing is drawn"
    return "\n".join([_title(shaper, on), head, *shown, below, *_note(absent)])


def totals(rows: Sequence[BlockRow]) -> str:
    """The blocks in one line: how many there are, and how much of the mean is left."""
    factors = [row.mean_factor for row in rows]
    taus = [row.tau for row in rows]
    return (
        f"{_counts(rows)}; "
        f"mean factor {min(factors):.4f} to {max(factors):.4f} (median {median(factors):.4f}); "
        f"tau {min(taus):.4f} to {max(taus):.4f}"
    )


def _counts(rows: Sequence[BlockRow]) -> str:
    blocks, elements = sum(row.count for row in rows), sum(row.count * row.d for row in rows)
    return f"{blocks:,} blocks, {elements:,} elements"


def taking_part(layout: Layout, absent: Sequence[int]) -> tuple[BlockRow, ...]:
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


def _cells(row: BlockRow) -> tuple[str, ...]:
    figures = f"{row.d:,}", str(row.q), f"{row.tau:.4f}", f"{row.mean_factor:.4f}"
    return _label(row), *figures


@dataclass(frozen=True)
class Coverage:
    """An optimizer's parameters, laid out in blocks."""

    layout: Layout
    tensors: list[Tensor]
    """One for each name of the layout."""
    groups: list[int]
    """The number of the parameter group that each is in."""
    present: list[list[int]]
    """What the optimizer held when this was made."""
    tie: Tie | None = None
    """Of a shaper that works on whole tensors."""

    def is_current(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer still holds what it held then."""
        return self.present == _present(optimizer)


def cover(optimizer: Optimizer, shaper: Shaper, names: Mapping[Tensor, str]) -> Coverage:
    """All parameters of an optimizer that are not exempt, or an error that says what is wrong."""
    names = with_late_names(names, optimizer)
    held = held_by_name(optimizer, names)
    for name in exempted(held, shaper.exempt):
        del held[name]
    if not held:
        raise ValueError("nothing to shape: exempt names every parameter of the optimizer")
    tie = shaper.tie({name: tensor for tensor, name in names.items()}, [*held])
    for name in () if tie is None else tie.leaves:
        del held[name]
    for name, (tensor, _) in held.items():
        _check_shapeable(name, tensor)
    blocks = resolve_blocks(shaper.blocks, {name: group for name, (_, group) in held.items()})
    sizes = {name: tensor.numel() for name, (tensor, _) in held.items()}
    layout = make_layout(blocks, q_of_blocks(shaper, blocks, sizes), sizes)
    tensors = [held[name][0] for name in layout.names]
    groups = [held[name][1] for name in layout.names]
    return Coverage(layout, tensors, groups, _present(optimizer), tie)


def check_disjoint(coverages: Iterable[Coverage]) -> None:
    """No parameter may be shaped twice, under whatever names."""
    taken: set[Tensor] = set()
    for coverage in coverages:
        pairs = zip(coverage.layout.names, coverage.tensors, strict=True)
        shared = [name for name, tensor in pairs if tensor in taken]
        if shared:
            raise ValueError(
                f"already shaped by another attachment: {listing(shared)}; detach that one, or "
                "divide the parameters between the two with exempt"
            )
        taken.update(coverage.tensors)


def check_left_out(name: str, rows: int, known: Mapping[str, Tensor]) -> None:
    """Refuse rows that a parameter does not have."""
    if name not in known:
        raise ValueError(f"no shaped parameter is called {name!r}; there are {listing([*known])}")
    shape = tuple(known[name].shape)
    most = shape[0] if shape else 0
    if isinstance(rows, bool) or not isinstance(rows, int):
        raise TypeError(f"rows of {name!r} must be an integer, got {rows!r}")
    if not 0 <= rows <= most:
        raise ValueError(f"rows of {name!r} must be 0 to {most} (shape {shape}), got {rows}")


def _present(optimizer: Optimizer) -> list[list[int]]:
    return [[id(tensor) for tensor in group["params"]] for group in optimizer.param_groups]


def _check_shapeable(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise TypeError(f"parameter {name!r} is {tensor.dtype}; shaping needs real numbers")
    check_whole(name, tensor)
