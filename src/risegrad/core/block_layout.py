"""Where everything stands: which part of which parameter belongs to which block.

A layout is made once, when a shaper is attached. It cuts the work into batches of whole blocks, so
that a step needs room for the noise of one batch only: the largest block, or ``WORKSPACE``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from risegrad.core.blocks import Blocks
from risegrad.theory.calibration import mean_factor, tau

WORKSPACE = 1 << 19
"""Elements: small blocks are handled together up to this many, to spare the overhead of each."""


@dataclass(frozen=True)
class Span:
    """Positions ``start..stop`` of a parameter: part of a block or, with ``chunk``, many blocks."""

    parameter: int
    start: int
    stop: int
    block: int
    offset: int
    """The parameter's place in the draws: its first element has this position."""
    chunk: int | None = None

    @property
    def size(self) -> int:
        """How many elements it has."""
        return self.stop - self.start


@dataclass(frozen=True)
class BlockBatch:
    """Spans that cover the blocks ``first..stop`` entirely."""

    spans: tuple[Span, ...]
    first: int
    stop: int


@dataclass(frozen=True)
class BlockRow:
    """A block as people see it; the pieces of a chunked parameter share a row."""

    name: str
    d: int
    q: int
    count: int = 1

    @property
    def tau(self) -> float:
        """``tau = d/(q+d+1)`` of the block."""
        return tau(self.d, self.q)

    @property
    def mean_factor(self) -> float:
        """``a = sqrt(q/(q+d+1))``: what is left of the mean."""
        return mean_factor(self.d, self.q)


@dataclass(frozen=True)
class Layout:
    """Parameters by number, the blocks, and the batches a step works through."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    rows: tuple[BlockRow, ...]
    batches: tuple[BlockBatch, ...]
    d: Tensor
    """Of every block, when all of it takes part in a step."""
    q: Tensor

    def taking_part(self, absent: Sequence[int]) -> Tensor:
        """``d`` of every block without the first ``absent`` elements of each parameter."""
        if not any(absent):
            return self.d
        d = self.d.numpy().copy()  # numpy, because most of many parameters may be frozen
        for span in (span for batch in self.batches for span in batch.spans):
            gone = min(absent[span.parameter], span.stop) - span.start
            if gone <= 0:
                continue
            whole, rest = (0, gone) if span.chunk is None else divmod(gone, span.chunk)
            d[span.block : span.block + whole] = 0
            if rest:
                d[span.block + whole] -= rest
        return torch.from_numpy(d)


def make_layout(blocks: Blocks, q: Sequence[int], sizes: Mapping[str, int]) -> Layout:
    """Lay out parameters of the given sizes; ``q`` has one entry per named block.

    The order of ``sizes`` gives the parameters their positions in the draws. It is not the order of
    the blocks, so that a parameter that joins an earlier block later on does not move the others.
    """
    for name in blocks.parameters:
        if sizes[name] == 0:
            raise ValueError(f"parameter {name!r} has no elements: a block needs at least one")
    rows, entries = _rows_and_entries(blocks, q, sizes)
    # Also under ``with torch.device("cuda")``: numpy draws the numbers of blocks.
    with torch.device("cpu"):
        counts = torch.tensor([row.count for row in rows])
        d = torch.tensor([row.d for row in rows], dtype=torch.float64)
        directions = torch.tensor([row.q for row in rows], dtype=torch.float64)
    return Layout(
        names=tuple(sizes),
        sizes=tuple(sizes.values()),
        rows=tuple(rows),
        batches=tuple(_packed(entries)),
        d=d.repeat_interleave(counts),
        q=directions.repeat_interleave(counts),
    )


def _rows_and_entries(
    blocks: Blocks, q: Sequence[int], sizes: Mapping[str, int]
) -> tuple[list[BlockRow], list[BlockBatch]]:
    """The rows, and the smallest batches there can be: one block, or a run of chunks."""
    index = {name: number for number, name in enumerate(sizes)}
    offsets = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    rows: list[BlockRow] = []
    entries: list[BlockBatch] = []
    block = 0
    for (name, members), directions in zip(blocks.members.items(), q, strict=True):
        size = sum(sizes[member] for member in members)
        if blocks.chunk is None or size <= blocks.chunk:
            rows.append(BlockRow(name, size, directions))
            spans = tuple(Span(index[m], 0, sizes[m], block, offsets[m]) for m in members)
            entries.append(BlockBatch(spans, block, block + 1))
        else:
            rows.extend(_chunk_rows(name, size, directions, blocks.chunk))
            whole = Span(index[members[0]], 0, size, block, offsets[members[0]], blocks.chunk)
            entries.extend(_chunk_entries(whole, blocks.chunk))
        block = entries[-1].stop
    return rows, entries


def _chunk_rows(name: str, size: int, q: int, chunk: int) -> Iterator[BlockRow]:
    yield BlockRow(name, chunk, q, size // chunk)
    if size % chunk:
        yield BlockRow(f"{name} (rest)", size % chunk, q)


def _chunk_entries(whole: Span, chunk: int) -> Iterator[BlockBatch]:
    size, block = whole.size, whole.block
    full, per_batch = size // chunk, max(1, WORKSPACE // chunk)
    for low in range(0, full, per_batch):
        high = min(low + per_batch, full)
        span = replace(whole, start=low * chunk, stop=high * chunk, block=block + low)
        yield BlockBatch((span,), block + low, block + high)
    if size % chunk:
        rest = replace(whole, start=full * chunk, block=block + full, chunk=None)
        yield BlockBatch((rest,), block + full, block + full + 1)


def _packed(entries: list[BlockBatch]) -> Iterator[BlockBatch]:
    """Neighbouring small entries together, up to ``WORKSPACE`` elements."""
    pending: list[BlockBatch] = []
    room = WORKSPACE
    for entry in entries:
        size = sum(span.size for span in entry.spans)
        if pending and size > room:
            yield _joined(pending)
            pending, room = [], WORKSPACE
        pending.append(entry)
        room -= size
    if pending:
        yield _joined(pending)


def _joined(entries: list[BlockBatch]) -> BlockBatch:
    spans = tuple(span for entry in entries for span in entry.spans)
    return BlockBatch(spans, entries[0].first, entries[-1].stop)
