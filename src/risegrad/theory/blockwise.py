"""The same identities when every block is shaped on its own (Theorems C.1 and C.3).

``sizes`` are the dimensions of consecutive blocks; ``q`` is one query count or one per block.

FO beside the shaped step at matched norm, and at matched progress.

Matched norm is the paper's comparison. At matched mean progress FO simply takes a smaller step, and
in one local step its damage is then always lower: whatever shaping gains beyond that comes from the
trajectory, so a benefit may be claimed only beside scaled FO.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from risegrad.common.checks import check_number
from risegrad.theory.calibration import mean_factor
from risegrad.theory.conditions import *
from risegrad.theory.deviation import (
    Moments,
    damage_moments,
    quadratic_linear_covariance,
    shape_covariance,
)
from risegrad.theory.identities import (
    expected_curvature,
    expected_damage,
    fo_damage,
    full_information_gap,
    quadratic_damage,
)
from risegrad.theory.shapes import check_directions, norm_matched_shape

__all__ = [
    "BlockwiseGap",
    "BlockwiseVariance",
    "CouplingFluctuation",
    "DamageDecomposition",
    "SideBySide",
    "StepComparison",
    "blockwise_covariances",
    "blockwise_curvature",
    "blockwise_decomposition",
    "blockwise_gap",
    "blockwise_gap_parts",
    "blockwise_moments",
    "blockwise_progress_cost",
    "blockwise_shape",
    "blockwise_variance",
    "compare_steps",
    "coupling_fluctuation",
    "expected_damage_decomposition",
    "scaled_fo_direction",
    "smaller_step_ratio",
]


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


@dataclass(frozen=True)
class StepComparison:
    """One FO step beside one shaped step: step sizes, mean progress, (expected) damage.

    Progress is the expected first-order decrease of the incoming loss, ``step * E[g'x]``.
    """

    fo_step: float
    shaped_step: float
    fo_progress: Tensor
    shaped_progress: Tensor
    fo_damage: Tensor
    shaped_damage: Tensor

    @property
    def damage_ratio(self) -> Tensor:
        """FO's damage as a part of the shaped step's: below 1 where FO does less."""
        return self.fo_damage / self.shaped_damage


@dataclass(frozen=True)
class SideBySide:
    """Both readings of the same shaped step."""

    matched_norm: StepComparison
    matched_progress: StepComparison


def compare_steps(H: Tensor, g: Tensor, q: int, eta: float = 1.0) -> SideBySide:
    """The shaped step of size ``eta`` beside FO at ``eta`` and at ``a eta``, for ``H >= 0``.

    At matched progress the ratio is ``q lam / ((q+1) lam + tr H) < 1``, ``lam = g'Hg/|g|^2``; at
    matched norm it is ``lam / ((1 - tau) lam + tau tr H/d)``, either side of 1.

    >>> import torch
    >>> both = compare_steps(torch.diag(torch.tensor([0.0, 4.0])), torch.tensor([0.0, 1.0]), q=2)
    >>> both.matched_norm.damage_ratio.item(), both.matched_progress.damage_ratio.item()
    (1.25, 0.5)
    """
    matrix, vector = check_damage(H, g)
    step = check_number("eta", eta, above=0)
    a, g2 = mean_factor(vector.shape[-1], q), vector.square().sum(-1)
    shaped = expected_damage(matrix, vector, q, step)

    def beside(fo_step: float) -> StepComparison:
        damage = fo_damage(matrix, vector, fo_step)
        return StepComparison(fo_step, step, fo_step * g2, step * a * g2, damage, shaped)

    return SideBySide(matched_norm=beside(step), matched_progress=beside(a * step))


def smaller_step_ratio(H: Tensor, g: Tensor, q: int) -> Tensor:
    """``q lam/((q+1) lam + tr H) < 1``: the smaller-step theorem, for ``H >= 0``.

    At equal progress a smaller plain step never does more one-step damage than a blind random one:
    this is its damage as a part of RISE's. For *any* random ``x`` with mean ``a g`` the damage is
    that of the mean step plus that of the scatter, ``a^2 g'Hg + tr(H Cov x)``, which is no less.

    >>> import torch
    >>> smaller_step_ratio(torch.diag(torch.tensor([0.0, 4.0])), torch.tensor([0.0, 1.0]), q=2)
    tensor(0.5000, dtype=torch.float64)
    """
    return compare_steps(H, g, q).matched_progress.damage_ratio


def blockwise_progress_cost(
    H: Tensor, g: Tensor, sizes: Sequence[int], q: int | Sequence[int], eta: float = 1.0
) -> Tensor:
    """``E[Q_blk] - Q(-eta A g) = (eta^2/2) sum_b tr(H_bb C_b) >= 0``: RISE beyond its control.

    Scaled FO ``A g`` makes the same mean progress block by block.

    >>> import torch
    >>> blockwise_progress_cost(torch.ones(2, 2), torch.ones(2), [1, 1], q=2).item()
    0.5
    """
    matrix, vector = check_damage(H, g)
    return blockwise_decomposition(matrix, vector, sizes, q, eta).residual.sum(-1)
