"""Which examples go where: choices by a seed of their own, for images and texts alike.

They use numpy's legacy generator because numpy keeps its numbers the same in all versions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def chosen(indices: Indices, number: int | None, *key: int) -> tuple[Indices, Indices]:
    """``number`` of the indices (None: all) chosen by the key, and the others; both ascending."""
    shuffled = np.random.RandomState(key).permutation(indices)
    cut = len(indices) if number is None else number
    return np.sort(shuffled[:cut]), np.sort(shuffled[cut:])


def share(total: int, fraction: float) -> int:
    """``fraction`` of the examples, at least one if any is wanted, but never all of them.

    >>> share(10, 0.0), share(10, 0.25), share(10, 0.01), share(2, 0.9), share(1, 0.5)
    (0, 2, 1, 1, 0)
    """
    return min(total - 1, max(1, round(total * fraction))) if fraction and total else 0
