"""From the spans of a layout to the pieces of memory that this process works on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from risegrad.arithmetic import Piece
from risegrad.draws import Draws
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
    spans: Sequence[Span], parts: Sequence[Local | None], draws: Draws | None, direction: int = 0
) -> Iterator[tuple[Piece, Local]]:
    """The pieces of the spans that are here and have a gradient; without ``draws``, no noise."""
    for span in spans:
        part = parts[span.parameter]
        if part is None or part.tensor.numel() == 0:
            continue
        if part.window is not None:
            # Sharded along a later dimension: the local elements are spread over the whole span.
            noise = _noise(span, part, draws, direction, span.start, span.stop)
            yield Piece(part.flat, noise, span.block), part
        elif min(span.stop, part.stop) > max(span.start, part.start):
            yield _run(span, part, draws, direction), part


def _run(span: Span, part: Local, draws: Draws | None, direction: int) -> Piece:
    """The common case: the local elements are one run of the parameter's flat index."""
    if span.chunk is None and span.size == part.tensor.numel():
        noise = _noise(span, part, draws, direction, span.start, span.stop)
        return Piece(part.flat, noise, span.block)
    low, high = max(span.start, part.start), min(span.stop, part.stop)
    flat = part.flat
    g = flat if high - low == flat.numel() else flat[low - part.start : high - part.start]
    if span.chunk is None:
        return Piece(g, _noise(span, part, draws, direction, low, high), span.block)
    # A shard may end inside a chunk: widen to whole chunks, with zeros where others hold the rest.
    first = low - (low - span.start) % span.chunk
    last = min(high + (span.stop - high) % span.chunk, span.stop)
    noise = _noise(span, part, draws, direction, first, last)
    rows = None if noise is None else noise.view(-1, span.chunk)
    block = span.block + (first - span.start) // span.chunk
    if (first, last) == (low, high):
        return Piece(g.view(-1, span.chunk), rows, block)
    padded = g.new_zeros(last - first)
    padded[low - first : high - first] = g
    return Piece(padded.view(-1, span.chunk), rows, block, copied_from=g, padding=low - first)


def _noise(
    span: Span, part: Local, draws: Draws | None, direction: int, start: int, stop: int
) -> Tensor | None:
    if draws is None:
        return None
    return part.noise(draws, span.parameter, start, stop, direction)
