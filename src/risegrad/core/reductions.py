"""Norms and dot products that stay right for long vectors.

On the CPU torch adds up a float32 norm, and BLAS a dot product, in a few running sums: of 16
million equal elements ``|x|^2`` comes out 2 % too small. Long vectors are therefore cut into tiles,
and the few numbers of the tiles are added up in float64, at about the speed of the whole.
"""

import torch
from torch import Tensor

LONG = 1 << 16
"""Elements: up to here the running sums are good to 2e-5 even where all elements are equal."""
_TILE = 1 << 12


def norm(x: Tensor) -> Tensor:
    """l2 norms over the last dimension; float32 of any length, in the dtype of ``x``.

    >>> norm(torch.full((1 << 24,), 0.5)).item()
    2048.0
    """
    if not _long(x):
        return _norm(x)
    whole = x.shape[-1] // _TILE * _TILE
    tiles = x[..., :whole].view(*x.shape[:-1], -1, _TILE)
    parts = torch.cat([_norm(tiles), _norm(x[..., whole:])[..., None]], -1)
    return _norm(parts.double()).to(x.dtype)


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


def _norm(x: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return found


def _long(x: Tensor) -> bool:
    # Other devices add up in trees.
    return x.shape[-1] > LONG and x.device.type == "cpu" and x.dtype == torch.float32
