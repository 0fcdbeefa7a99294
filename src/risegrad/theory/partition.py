"""A partition of d coordinates into consecutive blocks, each with its own query count."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.theory.calibration import mean_factor, tau
from risegrad.theory.conditions import (
    check_block_queries,
    check_matching,
    check_psd,
    check_sizes,
    check_symmetric,
    check_vector,
)


@dataclass(frozen=True)
class Partition:
    """Blocks in order; ``queries`` holds one ``q_b`` per block."""

    sizes: tuple[int, ...]
    queries: tuple[int, ...]

    @staticmethod
    def of(sizes: Sequence[int], q: int | Sequence[int], d: int) -> "Partition":
        """Checked against the dimension ``d`` that the blocks must cover.

        >>> Partition.of([2, 1], 4, d=3)
        Partition(sizes=(2, 1), queries=(4, 4))
        """
        checked = check_sizes(sizes, d)
        return Partition(checked, check_block_queries(q, len(checked)))

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where each block lies.

        >>> Partition((2, 1), (4, 4)).slices
        (slice(0, 2, None), slice(2, 3, None))
        """
        ends = [sum(self.sizes[: i + 1]) for i in range(len(self.sizes))]
        return tuple(slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True))

    @property
    def mean_factors(self) -> tuple[float, ...]:
        """``a_b = sqrt(q_b/(q_b+d_b+1))`` of each block."""
        return tuple(mean_factor(d, q) for d, q in zip(self.sizes, self.queries, strict=True))

    @property
    def taus(self) -> tuple[float, ...]:
        """``tau_b = d_b/(q_b+d_b+1)`` of each block."""
        return tuple(tau(d, q) for d, q in zip(self.sizes, self.queries, strict=True))

    @property
    def divisors(self) -> tuple[int, ...]:
        """``q_b + d_b + 1`` of each block: the divisor of its covariance."""
        return tuple(q + d + 1 for d, q in zip(self.sizes, self.queries, strict=True))

    def split(self, v: Tensor) -> list[Tensor]:
        """The blocks ``v_b`` of a vector (..., d)."""
        return [v[..., part] for part in self.slices]

    def diagonal(self, H: Tensor) -> list[Tensor]:
        """The diagonal blocks ``H_bb`` of a matrix (..., d, d)."""
        return [H[..., part, part] for part in self.slices]

    def spread(self, values: Sequence[float]) -> Tensor:
        """One number per block, repeated over its coordinates.

        >>> Partition((2, 1), (4, 4)).spread([5.0, 7.0]).tolist()
        [5.0, 5.0, 7.0]
        """
        repeats = torch.tensor(self.sizes)
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(repeats)


def block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """``blkdiag`` over leading dimensions.

    >>> block_diagonal([torch.ones(1, 1), 2 * torch.ones(1, 1)]).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    d = sum(block.shape[-1] for block in blocks)
    result = blocks[0].new_zeros((*blocks[0].shape[:-2], d, d))
    start = 0
    for block in blocks:
        end = start + block.shape[-1]
        result[..., start:end, start:end] = block
        start = end
    return result


def block_diagonal_part(H: Tensor, partition: Partition) -> Tensor:
    """``H_blk``: the diagonal blocks of ``H``, zero elsewhere."""
    return block_diagonal(partition.diagonal(H))


@dataclass(frozen=True)
class BlockSums:
    """A quadratic in parts: ``within`` (..., B) one per block, ``between`` all pairs of blocks."""

    within: Tensor
    between: Tensor

    @property
    def total(self) -> Tensor:
        """Within blocks plus between them."""
        return self.within.sum(-1) + self.between


def check_residuals(
    H: Tensor, name: str, vector: Tensor, covariances: Sequence[Tensor]
) -> tuple[Tensor, Tensor, list[Tensor], Partition]:
    """``H``, a vector of its size, covariances whose sizes cover it, and the blocks they make."""
    matrix, checked = check_symmetric("H", H), check_vector(name, vector)
    check_matching(matrix, checked, ("H", name))
    sigmas = [check_psd(f"covariances[{i}]", sigma) for i, sigma in enumerate(covariances)]
    blocks = Partition.of([sigma.shape[-1] for sigma in sigmas], 1, checked.shape[-1])
    return matrix, checked, sigmas, blocks
