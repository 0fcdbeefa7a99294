"""The order of the classes, and how a stream is cut into sessions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PUBLISHED_SEED = 1993
"""The seed of the class order in PILOT, in the methods compared there, and in the paper."""


def class_order(count: int, seed: int = PUBLISHED_SEED) -> NDArray[np.int64]:
    """The classes ``0..count-1`` in the published order.

    The same numbers as ``numpy.random.seed(seed); numpy.random.permutation(count)``, which is what
    PILOT does, but the global random state is left alone.

    >>> class_order(100)[:5].tolist()
    [68, 56, 78, 8, 23]
    """
    return np.random.RandomState(seed).permutation(count).astype(np.int64)


def sessions(count: int, base: int, increment: int) -> list[range]:
    """The positions of the classes of every session.

    The first session has ``base`` classes, or ``increment`` where ``base`` is 0; every later one
    has ``increment``; the last one has what is left, which may be fewer.

    >>> sessions(10, base=0, increment=4)
    [range(0, 4), range(4, 8), range(8, 10)]
    """
    if count < 1:
        raise ValueError(f"count must be at least 1 class, got {count}")
    if not 0 <= base <= count:
        raise ValueError(f"base must be within 0..{count}, the number of classes, got {base}")
    if not 1 <= increment <= count:
        raise ValueError(
            f"increment must be within 1..{count}, the number of classes, got {increment}"
        )
    starts = [0, *range(base or increment, count, increment)]
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], count], strict=True)]
