"""Random vectors for estimates: each is a pure function of (seed, its number)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from risegrad.core.draws import numbered_generator


def rademacher(d: int, numbers: Iterable[int], seed: int, dtype: torch.dtype) -> Tensor:
    """Columns (d, K) of independent signs; drawn on the CPU, so the same on every device."""
    columns = []
    for number in numbers:
        generator = numbered_generator(seed, number)
        bits = torch.randint(0, 2, (d,), generator=generator, dtype=torch.int8)
        columns.append((2 * bits - 1).to(dtype))
    return torch.stack(columns, dim=1)


def gaussian(d: int, numbers: Iterable[int], seed: int, dtype: torch.dtype) -> Tensor:
    """Columns (d, K) of independent standard normals."""
    columns = []
    for number in numbers:
        generator = numbered_generator(seed, number)
        columns.append(torch.randn(d, generator=generator, dtype=dtype))
    return torch.stack(columns, dim=1)
