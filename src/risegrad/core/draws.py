"""Random numbers as a pure function of (seed, step, position).

Positions are cut into tiles, and each tile has its own freshly seeded generator. So the numbers do
not depend on what was drawn before, on the blocks or on how parameters are spread over machines: a
resumed run needs one integer, replicas agree without talking, and a shard draws only the tiles it
touches. torch's global generator is never used.

torch's CPU engine keeps 32 bits of a seed. Among ``N`` tiles drawn in a whole training run about
``N^2 / 2^33`` pairs therefore repeat each other's noise somewhere else, at another step: each draw
still has the exact law. (CUDA's engine keeps all 64 bits.)
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TILE = 1 << 14
"""Positions in a tile on the CPU: small, so that a tiny model does not pay for a large draw."""
DEVICE_TILE = 1 << 20
"""On other devices, where the start of a kernel costs more than its numbers."""
_MASK = (1 << 64) - 1
_HALF = frozenset({torch.float16, torch.bfloat16})


def mix(*words: int) -> int:
    """A 64-bit hash of integers (splitmix64's finalizer over each word): close words, far seeds.

    >>> mix(0, 1) != mix(1, 0)
    True
    """
    state = 0
    for word in words:
        state = (state + (word & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def tile_size(kind: str, length: int | None = None) -> int:
    """Positions in a tile on a kind of device; none there is longer than a whole stream.

    >>> tile_size("cpu", 8192), tile_size("cuda", 8192), tile_size("cuda")
    (16384, 8192, 1048576)
    """
    if kind == "cpu":
        return TILE
    return DEVICE_TILE if length is None else max(1, min(DEVICE_TILE, length))


def numbered_generator(
    seed: int, number: int, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A generator for draw ``number`` of a seed, the same whatever was drawn before it."""
    return torch.Generator(device=device).manual_seed(mix(seed, number))


@dataclass(frozen=True)
class Draws:
    """The random numbers of one step."""

    seed: int
    step: int

    def normals(
        self,
        out: Tensor,
        start: int = 0,
        direction: int = 0,
        stream: int = 0,
        length: int | None = None,
    ) -> Tensor:
        """Fill the 1-D ``out`` with the standard normals at ``start, start + 1, ...``.

        Other directions and other streams are other, independent numbers; ``length`` is that of
        the stream, if it has an end.
        """
        size = tile_size(out.device.type, length)
        stop = start + out.numel()
        key = mix(self._key, stream, direction)
        tiles = range(-(-start // size), stop // size)
        if len(tiles) and drawing_dtype(out.dtype) == out.dtype:
            inside = out[tiles.start * size - start : tiles.stop * size - start]
            _fill(inside.view(len(tiles), size), tiles, key)
        else:
            tiles = range(0)
        for tile in range(start // size, -(-stop // size)):
            if tile not in tiles:
                low, high = max(tile * size, start), min((tile + 1) * size, stop)
                part = self._tile(key, tile, size, out)[low - tile * size : high - tile * size]
                out[low - start : high - start] = part
        return out

    def _tile(self, key: int, tile: int, size: int, like: Tensor) -> Tensor:
        """A whole tile. The last one is kept: the next call often begins where this one ended."""
        wanted = (key, tile, like.dtype, like.device)
        if wanted not in self._kept:
            self._kept.clear()
            room = torch.empty(1, size, dtype=drawing_dtype(like.dtype), device=like.device)
            self._kept[wanted] = _fill(room, range(tile, tile + 1), key)[0]
        return self._kept[wanted]

    @cached_property
    def _kept(self) -> dict[tuple[int, int, torch.dtype, torch.device], Tensor]:
        return {}

    def chi_squares(self, degrees: NDArray[np.float64]) -> Tensor:
        """One chi-square number per block; blocks appended later leave earlier ones unchanged."""
        return torch.from_numpy(self._scalars(1).chisquare(degrees))

    def scalar_normals(self, count: int) -> Tensor:
        """One standard normal number per block, independent of everything else."""
        return torch.from_numpy(self._scalars(2).standard_normal(count))

    def _scalars(self, purpose: int) -> np.random.Generator:
        # Philox takes its key as it is, so that two purposes can never share a stream.
        return np.random.Generator(np.random.Philox(key=[self._key, purpose]))

    @cached_property
    def _key(self) -> int:
        return mix(self.seed, self.step)


class Room:
    """Memory for the noise of one batch, used again for the next one.

    Memory that is new to the process costs more than the numbers that are written to it.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._used: set[tuple[torch.dtype, torch.device]] = set()

    def clear(self) -> None:
        """Everything that was taken may be overwritten."""
        self._used.clear()

    def take(self, size: int, like: Tensor) -> Tensor:
        """Memory for ``size`` numbers of the dtype and device of ``like``."""
        kind = (like.dtype, like.device)
        if kind in self._used:
            return like.new_empty(size)
        if kind not in self._memory or self._memory[kind].numel() < size:
            self._memory.pop(kind, None)  # before the new one is there, not after
            self._memory[kind] = like.new_empty(size)
        self._used.add(kind)
        return self._memory[kind][:size]


@dataclass(frozen=True)
class Noise:
    """Where a step gets its normal vectors: the draws of one direction, and memory for them."""

    draws: Draws
    room: Room
    direction: int = 0

    def normals(self, like: Tensor, start: int, stop: int) -> Tensor:
        """The standard normals at positions ``start..stop``, in the dtype and place of ``like``."""
        return self.draws.normals(self.room.take(stop - start, like), start, self.direction)


def _fill(rows: Tensor, tiles: range, key: int) -> Tensor:
    """Draw each of the tiles into its row."""
    generator = torch.Generator(device=rows.device)
    for row, tile in zip(rows.unbind(), tiles, strict=True):
        generator.manual_seed(mix(key, tile))
        row.normal_(generator=generator)
    return rows


def drawing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half precision is drawn in float32 and rounded: torch's own half normals are coarser."""
    return torch.float32 if dtype in _HALF else dtype
