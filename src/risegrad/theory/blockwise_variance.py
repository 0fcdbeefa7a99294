"""How much one blockwise batch scatters: exactly, and where the scatter comes from."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from risegrad.common.checks import check_number
from risegrad.theory.blockwise import blockwise_gap, scaled_fo_direction
from risegrad.theory.conditions import check_curvature
from risegrad.theory.linear_algebra import dot, matvec, quadratic
from risegrad.theory.local_model import fo_damage, quadratic_damage
from risegrad.theory.partition import BlockSums, Partition, block_diagonal, check_residuals
from risegrad.theory.variance import Moments, damage_moments, quadratic_linear_covariance


@dataclass(frozen=True)
class BlockwiseVariance:
    """``Var[x'Hx/2]`` by source; the first three (..., B) one per block, ``coupling`` all pairs.

    ``within`` is the block's own scatter, ``drift`` that of its product with the mean of the other
    blocks, ``mixed`` twice their covariance, ``coupling`` that of two residuals meeting.
    """

    within: Tensor
    drift: Tensor
    mixed: Tensor
    coupling: Tensor

    @property
    def total(self) -> Tensor:
        """The whole variance."""
        return (self.within + self.drift + self.mixed).sum(-1) + self.coupling


def blockwise_variance(
    H: Tensor, g: Tensor, sizes: Sequence[int], q: int | Sequence[int]
) -> BlockwiseVariance:
    """Exact variance of ``x'Hx/2`` for ``x = P_blk g`` and symmetric ``H``.

    With ``m_b = a_b g_b``, ``C_b = Cov(x_b)`` and ``r_b = sum_{c != b} H_bc m_c``:

        sum_b (Var[x_b'H_bb x_b/2] + r_b'C_b r_b + Cov[x_b'H_bb x_b, r_b'x_b])
        + sum_{b<c} tr(H_bc C_c H_cb C_b)

    The paper bounds this (Proposition C.2) and does not compute it.

    >>> parts = blockwise_variance(torch.eye(2), torch.ones(2), [1, 1], q=1)
    >>> parts.drift.tolist(), parts.coupling.item()
    ([0.0, 0.0], 0.0)
    """
    matrix, vector = check_curvature(H, g)
    blocks = Partition.of(sizes, q, vector.shape[-1])
    pulls = matvec(matrix, scaled_fo_direction(vector, sizes, q))
    rows = zip(
        blocks.diagonal(matrix), blocks.split(vector), blocks.split(pulls),
        blocks.queries, blocks.mean_factors, strict=True,
    )  # fmt: skip
    parts = [_block_terms(block, part, pull, count, a) for block, part, pull, count, a in rows]
    within, drift, mixed = (torch.stack(terms, dim=-1) for terms in zip(*parts, strict=True))
    return BlockwiseVariance(within, drift, mixed, _coupling_variance(matrix, vector, blocks))


def _block_terms(
    block: Tensor, g: Tensor, pull: Tensor, q: int, a: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The three terms of one block; ``pull`` is the block of ``H m``, its own part still inside."""
    others = pull - a * matvec(block, g)
    spread = (dot(g, others) ** 2 + dot(g, g) * dot(others, others)) / (q + g.shape[-1] + 1)
    within = damage_moments(block, g, q).variance
    return within, spread, quadratic_linear_covariance(block, g, others, q)


def _coupling_variance(H: Tensor, g: Tensor, blocks: Partition) -> Tensor:
    """``sum_{b<c} tr(H_bc C_c H_cb C_b)``, with the rank-one parts of ``C`` multiplied out."""
    total = torch.zeros((), dtype=H.dtype, device=H.device)
    for b, c in combinations(range(len(blocks.sizes)), 2):
        here, there = g[..., blocks.slices[b]], g[..., blocks.slices[c]]
        block = H[..., blocks.slices[b], blocks.slices[c]]
        product, back = matvec(block, there), matvec(block.mT, here)
        n_b, n_c = dot(here, here), dot(there, there)
        single = n_c * dot(back, back) + n_b * dot(product, product)
        full = dot(here, product) ** 2 + single + n_b * n_c * block.square().sum((-2, -1))
        total = total + full / blocks.divisors[b] / blocks.divisors[c]
    return total


def blockwise_moments(
    H: Tensor, g: Tensor, sizes: Sequence[int], q: int | Sequence[int], eta: float = 1.0
) -> Moments:
    """Mean (Theorem C.1) and exact variance of the blockwise one-batch damage.

    >>> mean, variance = blockwise_moments(torch.ones(2, 2), torch.ones(2), [1, 1], q=2)
    >>> round(mean.item(), 9), round(variance.item(), 9)  # T^2/16 with T ~ chi2(4)
    (1.5, 5.25)
    """
    step = check_number("eta", eta, above=0)
    mean = fo_damage(H, g, eta) - blockwise_gap(H, g, sizes, q, eta)
    return Moments(mean, step**4 * blockwise_variance(H, g, sizes, q).total)


class CouplingFluctuation(BlockSums):
    """``Q(e) - E[Q(e)]`` of a centered residual: ``within`` (..., B) and ``between`` all pairs."""


def coupling_fluctuation(
    H: Tensor, residual: Tensor, covariances: Sequence[Tensor]
) -> CouplingFluctuation:
    """The fluctuation of one realized residual, by blocks and by pairs (equation 39).

    ``sum_b (e_b'H_bb e_b - tr(H_bb Sigma_b))/2 + sum_{b<c} e_b'H_bc e_c``

    >>> one = torch.eye(1)
    >>> coupling_fluctuation(torch.ones(2, 2), torch.tensor([1.0, 2.0]), [one, one]).total.item()
    3.5
    """
    matrix, vector, sigmas, blocks = check_residuals(H, "residual", residual, covariances)
    rows = zip(blocks.diagonal(matrix), blocks.split(vector), sigmas, strict=True)
    within = [(quadratic(block, e) - (block * s).sum((-2, -1))) / 2 for block, e, s in rows]
    coupling = matrix - block_diagonal(blocks.diagonal(matrix))
    return CouplingFluctuation(torch.stack(within, dim=-1), quadratic_damage(coupling, vector))
