"""One step of a shaper over the tensors of a layout, in place.

Plain tensors go batch by batch, with room for the noise of one batch. If any tensor is sharded, all
blocks are measured first, one small all-reduce follows, and the same noise is drawn a second time:
that costs a second draw and saves both memory and messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from risegrad.core.arithmetic import Measured, Piece, add_measured, combine, measure
from risegrad.core.blocks import BlockBatch, Layout, Span
from risegrad.core.draws import Draws, Noise, Room, drawing_dtype
from risegrad.core.shapers import BlockDraws, Rise, Shaper
from risegrad.core.shards import (
    Kept,
    LocalPart,
    Reduction,
    WholeStep,
    Work,
    local_part,
    reduced,
)
from risegrad.theory.calibration import kappa


def check_pieces(spans: Sequence[Span], parts: Sequence[LocalPart | None]) -> None:
    """Refuse what cannot be cut into pieces, before anything is changed."""
    for span in spans:
        part = parts[span.parameter]
        if part is not None and part.window is not None and span.size != part.whole.numel():
            raise NotImplementedError(
                "blocks smaller than a tensor need tensors sharded along their first dimension, "
                f"got one of shape {tuple(part.whole)} sharded along another"
            )


def make_pieces(
    spans: Sequence[Span], parts: Sequence[LocalPart | None], noise: Noise | None
) -> Iterator[tuple[Piece, LocalPart]]:
    """The pieces of the spans that are here and have a gradient, with their normals if wanted."""
    drawn = _drawn_together(spans, parts, noise)
    for span, normals in zip(spans, drawn, strict=True):
        part = parts[span.parameter]
        if part is None or part.tensor.numel() == 0:
            continue
        if part.window is not None:
            # Sharded along a later dimension: the local elements are spread over the whole span.
            yield Piece(part.flat, _normals(span, part, noise), span.block), part
        elif min(span.stop, part.stop) > max(span.start, part.start):
            yield _run(span, part, noise, normals), part


def _drawn_together(
    spans: Sequence[Span], parts: Sequence[LocalPart | None], noise: Noise | None
) -> Sequence[Tensor | None]:
    """The normals of spans that follow each other in plain tensors: one draw for many."""
    nothing = [None] * len(spans)
    first = parts[spans[0].parameter]
    if noise is None or first is None or len(spans) == 1:
        return nothing
    like = first.tensor
    start = position = spans[0].offset + spans[0].start
    for span in spans:
        part = parts[span.parameter]
        if part is None or part.reduction is not None or part.start:
            return nothing
        if span.offset + span.start != position:
            return nothing
        if part.tensor.dtype != like.dtype or part.tensor.device != like.device:
            return nothing
        position += span.size
    sizes = [span.size for span in spans]
    return torch.split_with_sizes(noise.normals(like, start, position), sizes)


def _run(span: Span, part: LocalPart, noise: Noise | None, normals: Tensor | None) -> Piece:
    """The common case: the local elements are one run of the parameter's flat index."""
    low, high = max(span.start, part.start), min(span.stop, part.stop)
    flat = part.flat
    g = flat if high - low == flat.numel() else flat[low - part.start : high - part.start]
    first, last = low, high
    if span.chunk is not None:
        # A shard may end inside a chunk: widen to whole chunks, with zeros for what others hold.
        first = low - (low - span.start) % span.chunk
        last = min(high + (span.stop - high) % span.chunk, span.stop)
    if normals is None:
        normals = _normals(replace(span, start=first, stop=last), part, noise)
    if span.chunk is None:
        return Piece(g, normals, span.block)
    rows = None if normals is None else normals.view(-1, span.chunk)
    block = span.block + (first - span.start) // span.chunk
    if (first, last) == (low, high):
        return Piece(g.view(-1, span.chunk), rows, block)
    padded = g.new_zeros(last - first)
    padded[low - first : high - first] = g
    return Piece(padded.view(-1, span.chunk), rows, block, copied_from=g, padding=low - first)


def _normals(span: Span, part: LocalPart, noise: Noise | None) -> Tensor | None:
    return None if noise is None else part.normals(noise, span.offset, span.start, span.stop)


@torch.no_grad()
def shape_tensors(
    shaper: Shaper,
    layout: Layout,
    tensors: Sequence[Tensor | None],
    step: int,
    left_out: Mapping[str, int] | None = None,
) -> None:
    """Shape the tensors (one per parameter of the layout; None where there is no gradient).

    ``left_out`` says how many of a parameter's first rows take no part either. Blocks have the
    dimension of what is left; the draws of what is left do not depend on what is not.
    """
    left_out = left_out or {}
    parts = _local_parts(layout, tensors, left_out)
    present = [part for part in parts if part is not None]
    if not present:
        return
    draws = Draws(shaper.seed, step)
    d = layout.taking_part(_absent(layout, parts, left_out))
    scalars = block_scalars(d, layout.q, draws, present[0].tensor.device)
    job = _Job(shaper, layout, parts, Noise(draws, Room()), scalars)
    sharded = any(part.reduction is not None for part in present)
    if isinstance(shaper, Rise) and shaper.sampler == "directions":
        job.run_directions(sharded)
    elif sharded:
        job.run_sharded()
    else:
        job.run()


@torch.no_grad()
def shape_whole(
    work: Work,
    shaper: Shaper,
    layout: Layout,
    tensors: Sequence[Tensor | None],
    step: int,
    left_out: Mapping[str, int],
    gradients: Sequence[Tensor | None] | None = None,
    downhill: bool = True,
    kept: Kept | None = None,
) -> None:
    """The same for a shaper that is tied: ``work`` gets the tensors, and the draw to call.

    ``gradients`` are what the optimizer saw, where ``tensors`` are parameters that it has moved.
    """
    if gradients is None:  # parameters are dense
        check_dense(layout, tensors)

    def draw(found: Mapping[str, Tensor]) -> None:
        shape_tensors(shaper, layout, [found.get(n) for n in layout.names], step, left_out)

    def named(found: Sequence[Tensor | None]) -> dict[str, Tensor]:
        return {n: t for n, t in zip(layout.names, found, strict=True) if t is not None}

    seen = None if gradients is None else named(gradients)
    work(WholeStep(named(tensors), left_out, draw, seen, downhill, kept))


def check_dense(layout: Layout, tensors: Sequence[Tensor | None]) -> None:
    """Raise an error that names the first sparse gradient."""
    for name, tensor in zip(layout.names, tensors, strict=True):
        if tensor is not None and tensor.layout is not torch.strided:
            raise RuntimeError(
                f"the gradient of {name!r} is sparse ({tensor.layout}), and a shaped one is dense: "
                "make it dense (sparse=False in the embedding) or name the parameter in exempt"
            )


def _local_parts(
    layout: Layout, tensors: Sequence[Tensor | None], left_out: Mapping[str, int]
) -> list[LocalPart | None]:
    """All that can fail, before anything is changed."""
    check_dense(layout, tensors)
    parts = [
        None if tensor is None else local_part(name, tensor)
        for name, tensor in zip(layout.names, tensors, strict=True)
    ]
    for batch in layout.batches:
        check_pieces(batch.spans, parts)
    if not left_out:
        return parts
    return [
        None if part is None else part.after(left_out.get(name, 0))
        for name, part in zip(layout.names, parts, strict=True)
    ]


def _absent(
    layout: Layout, parts: Sequence[LocalPart | None], left_out: Mapping[str, int]
) -> list[int]:
    """How many elements of each parameter, its first ones, take no part in the step."""
    if not left_out:
        return [0 if p is not None else n for p, n in zip(parts, layout.sizes, strict=True)]
    return [
        size if part is None else left_out.get(name, 0) * part.whole[1:].numel()
        for name, size, part in zip(layout.names, layout.sizes, parts, strict=True)
    ]


def block_scalars(d: Tensor, q: Tensor, draws: Draws, device: torch.device) -> BlockDraws:
    """The numbers of all blocks that do not depend on gradients, where the arithmetic happens."""
    # float64 costs nothing at one number per block; Apple's GPUs have none.
    dtype = torch.float32 if device.type == "mps" else torch.float64
    drawn = torch.stack([d, q, draws.chi_squares(q.numpy()), draws.scalar_normals(len(d))])
    d, q, chi2, normal = drawn.to(device, dtype, non_blocking=True)
    # Blocks of which nothing takes part are not used; they must not divide by zero.
    d = d.clamp(min=1)
    return BlockDraws(
        d, q, norm=torch.zeros_like(d), dot=torch.zeros_like(d), chi2=chi2, normal=normal
    )


@dataclass(frozen=True)
class _Job:
    shaper: Shaper
    layout: Layout
    parts: Sequence[LocalPart | None]
    noise: Noise
    scalars: BlockDraws

    def run(self) -> None:
        # A call per batch: its noise is gone before the next one's is drawn.
        for batch in self.layout.batches:
            self._shape_batch(batch)

    def _shape_batch(self, batch: BlockBatch) -> None:
        found, measured = self._drawn(batch)
        pieces = [piece for piece, _ in found]
        sums = self._zeros(batch)
        if self.shaper.uses_noise:
            add_measured(sums, pieces, measured, batch.first)
        combine(pieces, batch.first, *self._coefficients(sums, batch.first, batch.stop))
        _put_back(found)

    def run_sharded(self) -> None:
        sums = self._measured_everywhere()
        coefficients = self._coefficients(sums, 0, sums.shape[1])
        for batch in self.layout.batches:
            self._combine_batch(batch, *coefficients)

    def _combine_batch(self, batch: BlockBatch, on_gradient: Tensor, on_noise: Tensor) -> None:
        found, _ = self._drawn(batch, measuring=False)
        combine([piece for piece, _ in found], 0, on_gradient, on_noise)
        _put_back(found)

    def run_directions(self, sharded: bool) -> None:
        """Algorithm 1, literally: the reference, which is not needed on shards."""
        if sharded:
            raise NotImplementedError(
                'sampler="directions" is the reference for plain tensors; '
                'use sampler="one-draw" on sharded ones: the law is the same'
            )
        for batch in self.layout.batches:
            self._sum_directions(batch)

    def _sum_directions(self, batch: BlockBatch) -> None:
        gradients = list(make_pieces(batch.spans, self.parts, None))
        totals = [torch.zeros_like(p.g, dtype=drawing_dtype(p.g.dtype)) for p, _ in gradients]
        d, q = self.scalars.d[batch.first : batch.stop], self.scalars.q[batch.first : batch.stop]
        for direction in range(int(q.max())):
            self.noise.room.clear()
            noise = replace(self.noise, direction=direction)
            drawn = [piece for piece, _ in make_pieces(batch.spans, self.parts, noise)]
            sums = self._zeros(batch)
            add_measured(sums, drawn, [measure(piece) for piece in drawn], batch.first)
            weights = torch.where(q > direction, sums[1] / (q * kappa(d, q).sqrt()), 0)
            targets = [
                Piece(total, piece.noise.to(total), piece.block)
                for total, piece in zip(totals, drawn, strict=True)
                if piece.noise is not None
            ]
            combine(targets, batch.first, torch.ones_like(weights), weights)
        for (piece, _), total in zip(gradients, totals, strict=True):
            piece.g.copy_(total)
        _put_back(gradients)

    def _drawn(
        self, batch: BlockBatch, measuring: bool = True
    ) -> tuple[list[tuple[Piece, LocalPart]], list[Measured]]:
        """The pieces of a batch, each measured while its noise is still in the cache."""
        noise = self.noise if self.shaper.uses_noise else None
        self.noise.room.clear()
        found, measured = [], []
        for piece, part in make_pieces(batch.spans, self.parts, noise):
            found.append((piece, part))
            if measuring and noise is not None:
                measured.append(measure(piece))
        return found, measured

    def _zeros(self, batch: BlockBatch | None = None) -> Tensor:
        blocks = len(self.layout.d) if batch is None else batch.stop - batch.first
        return self.scalars.d.new_zeros(2, blocks)

    def _coefficients(self, sums: Tensor, first: int, stop: int) -> tuple[Tensor, Tensor]:
        rows, at = self.scalars, slice(first, stop)
        measured = BlockDraws(
            rows.d[at], rows.q[at], sums[0].sqrt(), sums[1], rows.chi2[at], rows.normal[at]
        )
        return self.shaper.coefficients(measured)

    def _measured_everywhere(self) -> Tensor:
        """Squared norms and dot products of all blocks, summed over the processes with the rest."""
        total = self._zeros()
        if not self.shaper.uses_noise:
            return total
        # Every process must join every sum, also one whose shard is empty.
        partial: dict[Reduction | None, Tensor] = {
            part.reduction: self._zeros() for part in self.parts if part is not None
        }
        for batch in self.layout.batches:
            self._measure_batch(batch, partial)
        for reduction, sums in partial.items():
            total += sums if reduction is None else reduced(sums, reduction)
        return total

    def _measure_batch(self, batch: BlockBatch, partial: dict[Reduction | None, Tensor]) -> None:
        found, measured = self._drawn(batch)
        for reduction, sums in partial.items():
            here = [i for i, (_, part) in enumerate(found) if part.reduction == reduction]
            add_measured(sums, [found[i][0] for i in here], [measured[i] for i in here], 0)
        _put_back(found)


def _put_back(pieces: Sequence[tuple[Piece, LocalPart]]) -> None:
    """Write copies back to where they came from: first the pieces, then their tensors."""
    for piece, _ in pieces:
        piece.put_back()
    for _, part in pieces:
        part.put_back()
