"""The few passes over memory that a step makes: squared norms, dot products, ``c1 g + c2 n``.

Reductions run in float32 at least. Half-precision gradients are widened tile by tile, so that no
second copy of a block appears and the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.core.draws import TILE, drawing_dtype

LONG = 1 << 16
"""Elements: up to here the running sums are good to 2e-5 even where all elements are equal."""
_TILE = 1 << 12


def norm(x: Tensor) -> Tensor:
    """l2 norms over the last dimension; float32 of any length, in the dtype of ``x``.

    >>> norm(torch.full((1 << 24,), 0.5)).item()
    2048.0
    """
    if not _long(x):
        return _row_norm(x)
    whole = x.shape[-1] // _TILE * _TILE
    tiles = x[..., :whole].view(*x.shape[:-1], -1, _TILE)
    parts = torch.cat([_row_norm(tiles), _row_norm(x[..., whole:])[..., None]], -1)
    return _row_norm(parts.double()).to(x.dtype)


def dots(x: Tensor, y: Tensor) -> Tensor:
    """``x . y`` over the last dimension of two tensors of one shape and dtype."""
    if not _long(x):
        return _dots(x, y)
    whole = x.shape[-1] // _TILE * _TILE
    tiles = (t[..., :whole].reshape(*t.shape[:-1], -1, _TILE) for t in (x, y))
    parts = torch.cat([_dots(*tiles), _dots(x[..., whole:], y[..., whole:])[..., None]], -1)
    return parts.double().sum(-1).to(x.dtype)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """``x . y`` of two vectors of one dtype."""
    if not _long(x):
        return torch.dot(x, y)
    pairs = zip(torch.split(x, LONG), torch.split(y, LONG), strict=True)
    return torch.stack([torch.dot(a, b) for a, b in pairs]).double().sum().to(x.dtype)


def _dots(x: Tensor, y: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vecdot(x, y)
    return found


def _row_norm(x: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return found


def _long(x: Tensor) -> bool:
    # Other devices add up in trees.
    return x.shape[-1] > LONG and x.device.type == "cpu" and x.dtype == torch.float32


Tensors = tuple[Tensor, ...]


@dataclass(slots=True)  # not frozen: one is made per tensor and step
class Piece:
    """Gradient elements and their noise: a vector of one block, or a matrix of a block per row."""

    g: Tensor
    noise: Tensor | None
    block: int
    copied_from: Tensor | None = None
    """Where the elements belong, if ``g`` is a zero-padded copy (a shard that cuts a block)."""
    padding: int = 0

    @property
    def rows(self) -> int:
        """How many blocks the piece holds: its rows, or 1."""
        return 1 if self.g.dim() == 1 else self.g.shape[0]

    def put_back(self) -> None:
        """Copy the result to where the gradient came from, if it was copied."""
        if self.copied_from is not None:
            end = self.padding + self.copied_from.numel()
            self.copied_from.copy_(self.g.view(-1)[self.padding : end])


Measured = tuple[Tensor, Tensor]
"""Norms and dot products ``g . n`` of a piece: numbers for a vector, one per row for a matrix."""


def measure(piece: Piece) -> Measured:
    """The norm of each block's gradient, and its dot product with the noise."""
    dots = _dot if piece.g.dim() == 1 else _row_dots
    return _norm(piece.g), dots(piece.g, piece.noise)


def add_measured(
    sums: Tensor, pieces: Sequence[Piece], measured: Sequence[Measured], first: int
) -> None:
    """Add squared norms and dot products to the blocks' columns of ``sums`` (2, B)."""
    both = list(zip(pieces, measured, strict=True))
    vectors = [(piece.block - first, *found) for piece, found in both if piece.g.dim() == 1]
    if vectors:
        blocks, norms, dots = zip(*vectors, strict=True)
        values = torch.stack([_gathered(norms, sums).square(), _gathered(dots, sums)])
        columns = _columns(blocks, sums.device)
        if isinstance(columns, slice):
            sums[:, columns] += values
        else:
            sums.index_add_(1, columns, values)
    for piece, (lengths, products) in both:
        if piece.g.dim() == 2:
            rows = slice(piece.block - first, piece.block - first + piece.rows)
            sums[0, rows] += lengths.to(sums).square()
            sums[1, rows] += products.to(sums)


def combine(pieces: Sequence[Piece], first: int, on_gradient: Tensor, on_noise: Tensor) -> None:
    """``g <- c1 g + c2 n`` in place, with the coefficients of each piece's block."""
    vectors = [piece for piece in pieces if piece.g.dim() == 1]
    for (dtype, device), group in _by_kind(vectors).items():
        columns = _columns([piece.block - first for piece in group], on_gradient.device)
        wide = drawing_dtype(dtype)
        c1 = on_gradient[columns].to(device, wide).unbind()
        c2 = on_noise[columns].to(device, wide).unbind()
        if wide == dtype:
            _combine_together(group, c1, c2)
        else:
            for piece, a, b in zip(group, c1, c2, strict=True):
                _combine_by_tile(piece, a, b)
    for piece in pieces:
        if piece.g.dim() == 2:
            rows = slice(piece.block - first, piece.block - first + piece.rows)
            _combine_rows(piece, on_gradient[rows, None], on_noise[rows, None])


def _columns(blocks: Sequence[int], device: torch.device) -> slice | Tensor:
    """Where the blocks stand. Most often one follows the other: then the device needs no list."""
    if list(blocks) == [*range(blocks[0], blocks[0] + len(blocks))]:
        return slice(blocks[0], blocks[0] + len(blocks))
    return torch.tensor(blocks, device=device)


def _combine_together(pieces: Sequence[Piece], c1: Tensors, c2: Tensors) -> None:
    gradients = [piece.g for piece in pieces]
    torch._foreach_mul_(gradients, c1)
    noise = [piece.noise for piece in pieces if piece.noise is not None]
    if noise:
        torch._foreach_addcmul_(gradients, noise, c2)


def _combine_by_tile(piece: Piece, c1: Tensor, c2: Tensor) -> None:
    for g, noise in _tiles(piece.g, piece.noise):
        wide = g.float().mul_(c1)
        g.copy_(wide if noise is None else wide.addcmul_(noise.float(), c2))


def _combine_rows(piece: Piece, c1: Tensor, c2: Tensor) -> None:
    wide = drawing_dtype(piece.g.dtype)
    shaped = piece.g.to(wide).mul_(c1.to(piece.g.device, wide))
    if piece.noise is not None:
        shaped.addcmul_(piece.noise.to(wide), c2.to(piece.g.device, wide))
    if shaped is not piece.g:
        piece.g.copy_(shaped)


def _gathered(values: Sequence[Tensor], like: Tensor) -> Tensor:
    here = like.device
    same = [value if value.device == here else value.to(here) for value in values]
    return torch.stack(same).to(like.dtype)


def _norm(g: Tensor) -> Tensor:
    wide = drawing_dtype(g.dtype)
    if g.dim() == 2:
        return norm(g.to(wide))
    if wide == g.dtype:
        return norm(g)
    # torch would widen all of a half-precision vector at once.
    return norm(torch.stack([norm(tile.float()) for tile, _ in _tiles(g, None)]))


def _dot(g: Tensor, noise: Tensor | None) -> Tensor:
    if noise is None:
        return g.new_zeros(())
    if drawing_dtype(g.dtype) == g.dtype:
        # For short vectors the threads that BLAS wakes cost more than the product.
        return dot(g, noise) if g.numel() > TILE // 2 else (g * noise).sum()
    pairs = [torch.dot(a.float(), b.float()) for a, b in _tiles(g, noise) if b is not None]
    return torch.stack(pairs).sum()


def _row_dots(g: Tensor, noise: Tensor | None) -> Tensor:
    if noise is None:
        return g.new_zeros(g.shape[0])
    wide = drawing_dtype(g.dtype)
    if g.shape[1] > LONG:
        rows = zip(g, noise, strict=True)
        return torch.stack([dot(a.to(wide), b.to(wide)) for a, b in rows])
    return torch.einsum("rc,rc->r", g.to(wide), noise.to(wide))


def _tiles(g: Tensor, noise: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    for start in range(0, g.numel(), TILE):
        stop = start + TILE
        yield g[start:stop], None if noise is None else noise[start:stop]


def _by_kind(pieces: Sequence[Piece]) -> dict[tuple[torch.dtype, torch.device], list[Piece]]:
    kinds: dict[tuple[torch.dtype, torch.device], list[Piece]] = {}
    for piece in pieces:
        kinds.setdefault((piece.g.dtype, piece.g.device), []).append(piece)
    return kinds
