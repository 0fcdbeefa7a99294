"""From the spans of a layout to the pieces of memory that this process works on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from risegrad.arithmetic import Piece
from risegrad.draws import Noise
from risegrad.layout import Span
from risegrad.sharding import Local


def check_pieces(spans: Sequence[Span], parts: Sequence[Local | None]) -> None:
    """Refuse what cannot be cut into pieces, before anything is changed."""
    for span in spans:
        part = parts[span.parameter]
        if part is not None and part.window is not None and span.size != part.whole.numel():
            raise NotImplementedError(
                "blocks smaller than a tensor need tensors sharded along their first dimension, "
                f"got one of shape {tuple(part.whole)} sharded along another"
            )


def make_pieces(
    spans: Sequence[Span], parts: Sequence[Local | None], noise: Noise | None
) -> Iterator[tuple[Piece, Local]]:
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
    spans: Sequence[Span], parts: Sequence[Local | None], noise: Noise | None
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


def _run(span: Span, part: Local, noise: Noise | None, normals: Tensor | None) -> Piece:
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


def _normals(span: Span, part: Local, noise: Noise | None) -> Tensor | None:
    return None if noise is None else part.normals(noise, span.offset, span.start, span.stop)
