"""How many eigenpairs a memory keeps where no rank is given."""

from __future__ import annotations

from collections.abc import Iterable

from risegrad.common.checks import check_positive_int

SMALL = 10 * 2**20
"""Up to so many bytes for the whole memory all factors are kept in full."""
RANK = 16
"""Eigenpairs of each factor of a larger one."""
MOST, LEAST = 64, 4
"""Eigenpairs of each factor: more make every step slower, fewer hardly protect."""
NUMBER = 4
"""Bytes of a float32, in which factors are unless the model is in float64."""


def factor_bytes(dim: int, rank: int | None, number: int = NUMBER) -> int:
    """Bytes of a factor of this size: a full one, or ``rank`` eigenpairs and one number."""
    if rank is None or rank >= dim:
        return number * dim * dim
    return number * ((dim + 1) * rank + 1)


def memory_bytes(dims: Iterable[int], rank: int | None, number: int = NUMBER) -> int:
    """Bytes of all factors together.

    >>> memory_bytes([768, 2304], 16)
    196744
    """
    return sum(factor_bytes(dim, rank, number) for dim in dims)


def rank_for(dims: Iterable[int], budget: int | None = None, number: int = NUMBER) -> int | None:
    """None (full factors) if those are small, or fit the budget; otherwise how many eigenpairs.

    >>> rank_for([100, 100]) is None
    True
    >>> rank_for([4096] * 448)
    16
    >>> rank_for([4096] * 448, budget=64 * 2**20)
    9
    >>> rank_for([4096] * 448, budget=64 * 2**20, number=8)
    4
    """
    sizes = list(dims)
    if budget is not None:
        check_positive_int("budget", budget)
    if memory_bytes(sizes, None, number) <= (SMALL if budget is None else budget):
        return None
    if budget is None:
        return RANK
    ranks = range(MOST, LEAST - 1, -1)
    return next((rank for rank in ranks if memory_bytes(sizes, rank, number) <= budget), LEAST)
