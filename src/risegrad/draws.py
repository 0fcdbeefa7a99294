"""Random numbers as a pure function of (seed, step, parameter, position).

Every parameter's flat index is cut into tiles of ``TILE`` positions, and each tile has its own
freshly seeded generator. So the numbers do not depend on what was drawn before, on the block
layout or on how the parameter is spread over machines: a resumed run needs one integer, replicas
agree without talking, and a shard draws only the tiles it touches. torch's global generator is
never used.

torch's CPU engine keeps 32 bits of a seed. Among ``N`` tiles drawn in a whole training run about
``N^2 / 2^33`` pairs therefore repeat each other's noise somewhere else, at another step: each draw
still has the exact law. (CUDA's engine keeps all 64 bits.)
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TILE = 1 << 16
MANY_TILES = 32
"""From here on, threads that share the tiles are worth their start."""
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


@dataclass(frozen=True)
class Draws:
    """The random numbers of one step."""

    seed: int
    step: int

    def normals(
        self, out: Tensor, parameter: int, size: int, start: int = 0, direction: int = 0
    ) -> Tensor:
        """Fill the 1-D ``out`` with standard normals at ``start, start + 1, ...`` of a parameter.

        ``size`` is the parameter's whole length: it fixes the length of the last tile, so that a
        shard that holds a part of a tile draws the same numbers as one that holds all of it.
        """
        tiles = range(start // TILE, -(-(start + out.numel()) // TILE))
        threads = torch.get_num_threads() if out.device.type == "cpu" else 1
        if threads == 1 or len(tiles) < MANY_TILES:
            self._fill(out, tiles, parameter, size, start, direction)
            return out
        # torch draws on one thread and lets go of Python's lock meanwhile. The threads end here: a
        # pool that outlives the call would not survive a fork.
        parts = [tiles[share::threads] for share in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            for done in [
                pool.submit(self._fill, out, part, parameter, size, start, direction)
                for part in parts
            ]:
                done.result()
        return out

    def _fill(
        self, out: Tensor, tiles: range, parameter: int, size: int, start: int, direction: int
    ) -> None:
        generator = torch.Generator(device=out.device)
        stop = start + out.numel()
        for tile in tiles:
            first, last = tile * TILE, min((tile + 1) * TILE, size)
            generator.manual_seed(mix(self._key, parameter, tile, direction))
            low, high = max(first, start), min(last, stop)
            target = out if high - low == out.numel() else out[low - start : high - start]
            if (low, high) == (first, last) and drawing_dtype(out.dtype) == out.dtype:
                target.normal_(generator=generator)
            else:
                whole = torch.empty(last - first, dtype=drawing_dtype(out.dtype), device=out.device)
                target.copy_(whole.normal_(generator=generator)[low - first : high - first])

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


def drawing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half precision is drawn in float32 and rounded: torch's own half normals are coarser."""
    return torch.float32 if dtype in _HALF else dtype
