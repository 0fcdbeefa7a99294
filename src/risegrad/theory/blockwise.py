"""The same identities when every block is shaped on its own (Theorems C.1 and C.3).

``sizes`` are the dimensions of consecutive blocks; ``q`` is one query count or one per block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.checks import check_number
from risegrad.theory.conditions import check_curvature, check_symmetric, check_vector
from risegrad.theory.drawn_shapes import check_directions, norm_matched_shape
from risegrad.theory.identities import expected_curvature, full_information_gap
from risegrad.theory.linear_algebra import quadratic
from risegrad.theory.local_model import fo_damage
from risegrad.theory.partition import (
    BlockSums,
    Partition,
    block_diagonal,
    block_diagonal_part,
    check_residuals,
)
from risegrad.theory.variance import shape_covariance


def blockwise_shape(directions: Sequence[Tensor]) -> Tensor:
    """``P_blk = blkdiag(P_1, ..., P_B)`` from one (..., q_b, d_b) batch per block (equation 33).

    >>> blockwise_shape([torch.ones(1, 1), torch.zeros(2, 1)]).diagonal().tolist()
    [0.5773502691896258, 0.0]
    """
    return block_diagonal([norm_matched_shape(check_directions(rows)) for rows in directions])


def scaled_fo_direction(g: Tensor, sizes: Sequence[int], q: int | Sequence[int]) -> Tensor:
    """``A g = E[P_blk g]``: the scaled FO control (Appendix D.1).

    >>> scaled_fo_direction(torch.tensor([2.0, 2.0, 3.0]), [2, 1], q=[1, 2]).tolist()
    [1.0, 1.0, 2.121320343559643]
    """
    vector = check_vector("g", g)
    blocks = Partition.of(sizes, q, vector.shape[-1])
    return blocks.spread(blocks.mean_factors).to(vector.device) * vector


def blockwise_covariances(
    g: Tensor, sizes: Sequence[int], q: int | Sequence[int]
) -> tuple[Tensor, ...]:
    """``C_b = Cov(P_b g_b) = (g_b g_b' + |g_b|^2 I)/(q_b+d_b+1)`` (equation 46).

    >>> [c.shape[-1] for c in blockwise_covariances(torch.ones(3), [2, 1], q=4)]
    [2, 1]
    """
    vector = check_vector("g", g)
    blocks = Partition.of(sizes, q, vector.shape[-1])
    pairs = zip(blocks.split(vector), blocks.queries, strict=True)
    return tuple(shape_covariance(part, count) for part, count in pairs)


def blockwise_curvature(H: Tensor, sizes: Sequence[int], q: int | Sequence[int]) -> Tensor:
    """``E[P_blk' H P_blk]`` (Theorem C.1, equation 34).

    Inside a block ``(1 - tau_b) H_bb + tau_b (tr H_bb/d_b) I``, between blocks ``a_b a_c H_bc``.

    >>> blockwise_curvature(torch.ones(2, 2), [1, 1], q=2)
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]], dtype=torch.float64)
    """
    matrix = check_symmetric("H", H)
    blocks = Partition.of(sizes, q, matrix.shape[-1])
    factors = blocks.spread(blocks.mean_factors).to(matrix.device)
    between = (matrix - block_diagonal_part(matrix, blocks)) * factors[:, None] * factors
    pairs = zip(blocks.diagonal(matrix), blocks.queries, strict=True)
    return between + block_diagonal([expected_curvature(block, count) for block, count in pairs])


class BlockwiseGap(BlockSums):
    """The two sums of equation 35: ``within`` (..., B) one per block, ``between`` all pairs."""


def blockwise_gap_parts(
    H: Tensor, g: Tensor, sizes: Sequence[int], q: int | Sequence[int], eta: float = 1.0
) -> BlockwiseGap:
    """Gap inside each block, and what shrinking the coupling of the means adds (equation 35).

    >>> parts = blockwise_gap_parts(torch.ones(2, 2), torch.ones(2), [1, 1], q=2)
    >>> parts.within.tolist(), round(parts.between.item(), 9)
    ([0.0, 0.0], 0.5)
    """
    matrix, vector = check_curvature(H, g)
    blocks = Partition.of(sizes, q, vector.shape[-1])
    pairs = zip(blocks.diagonal(matrix), blocks.split(vector), strict=True)
    gaps = torch.stack([full_information_gap(block, part, eta) for block, part in pairs], dim=-1)
    taus = torch.tensor(blocks.taus, dtype=gaps.dtype, device=gaps.device)
    coupling = matrix - block_diagonal_part(matrix, blocks)
    shrunk = scaled_fo_direction(vector, sizes, q)
    between = fo_damage(coupling, vector, eta) - fo_damage(coupling, shrunk, eta)
    return BlockwiseGap(taus * gaps, between)


def blockwise_gap(
    H: Tensor, g: Tensor, sizes: Sequence[int], q: int | Sequence[int], eta: float = 1.0
) -> Tensor:
    """``Q_FO - E[Q_blk]`` (Theorem C.1, equation 35).

    ``(eta^2/2) [sum_b tau_b g_b'(H_bb - lambda_b I) g_b + 2 sum_{b<c} (1 - a_b a_c) g_b'H_bc g_c]``

    >>> round(blockwise_gap(torch.ones(2, 2), torch.ones(2), [1, 1], q=2).item(), 9)
    0.5
    """
    return blockwise_gap_parts(H, g, sizes, q, eta).total


@dataclass(frozen=True)
class DamageDecomposition:
    """Expected damage as that of the mean step plus that of each block's centered residual."""

    mean_step: Tensor
    residual: Tensor

    @property
    def total(self) -> Tensor:
        """The whole damage: that of the mean step plus the residuals of all blocks."""
        return self.mean_step + self.residual.sum(-1)


def expected_damage_decomposition(
    H: Tensor, mean: Tensor, covariances: Sequence[Tensor]
) -> DamageDecomposition:
    """``E[Q(m + e)] = m'Hm/2 + sum_b tr(H_bb Sigma_b)/2`` (Theorem C.3, equation 38).

    For any displacement whose residuals are centered and uncorrelated between blocks.

    >>> parts = expected_damage_decomposition(torch.eye(2), torch.ones(2), [torch.eye(2)])
    >>> parts.mean_step.item(), parts.residual.tolist()
    (1.0, [1.0])
    """
    matrix, vector, sigmas, blocks = check_residuals(H, "mean", mean, covariances)
    pairs = zip(blocks.diagonal(matrix), sigmas, strict=True)
    residual = torch.stack([(block * sigma).sum((-2, -1)) / 2 for block, sigma in pairs], dim=-1)
    return DamageDecomposition(quadratic(matrix, vector) / 2, residual)


def blockwise_decomposition(
    H: Tensor, g: Tensor, sizes: Sequence[int], q: int | Sequence[int], eta: float = 1.0
) -> DamageDecomposition:
    """The decomposition of RISE itself: mean step ``-eta A g``, residuals ``eta^2 C_b``.

    Its ``mean_step`` is the damage of scaled FO, so ``residual`` is what RISE costs
    beyond that control.

    >>> parts = blockwise_decomposition(torch.ones(2, 2), torch.ones(2), [1, 1], q=2)
    >>> round(parts.mean_step.item(), 9), parts.residual.tolist()
    (1.0, [0.25, 0.25])
    """
    step = check_number("eta", eta, above=0)
    matrix, vector = check_curvature(H, g)
    sigmas = [step**2 * sigma for sigma in blockwise_covariances(vector, sizes, q)]
    mean = -step * scaled_fo_direction(vector, sizes, q)
    return expected_damage_decomposition(matrix, mean, sigmas)
