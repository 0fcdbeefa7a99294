"""Theorems C.1 and C.3 and the exact blockwise variance, against literal Algorithm 1."""

from itertools import combinations

import pytest
import torch

from risegrad.theory import (
    blockwise_covariances,
    blockwise_curvature,
    blockwise_decomposition,
    blockwise_gap,
    blockwise_gap_parts,
    blockwise_moments,
    blockwise_shape,
    blockwise_variance,
    coupling_fluctuation,
    coupling_fluctuation_operator,
    damage_gap,
    damage_moments,
    expected_curvature,
    expected_damage_decomposition,
    fo_damage,
    quadratic_damage,
    quadratic_linear_covariance,
    scaled_fo_direction,
)
from theory_reference import (
    KINDS,
    close,
    curvature,
    exact_mean,
    gradient,
    literal_blockwise,
    literal_damages,
    literal_shape,
    monte_carlo,
    normal,
    quadrature,
    worst_z,
)

# sizes and queries whose directions have few enough coordinates for a product rule
SMALL = [([1, 1], [1, 2]), ([2, 1], [1, 3]), ([2, 1, 1], [2, 1, 1]), ([1, 3], [2, 1])]
LARGE = [
    ("indefinite", [2, 1], [1, 64], 20_000),
    ("psd", [3, 5, 8], [4, 1, 2], 20_000),
    ("low_rank", [16, 16, 16, 16], [2, 2, 2, 2], 6_000),
    ("rotated", [1, 96, 31], [8, 2, 16], 2_000),
]


@pytest.mark.parametrize(("sizes", "q"), SMALL)
def test_mean_and_variance_exactly(sizes, q):
    blocks, weights = quadrature(q, sizes)
    for kind in KINDS:
        H, g = curvature(kind, sum(sizes)), gradient(sum(sizes))
        damage = literal_damages(H, g, blocks, eta=0.6)
        mean = exact_mean(damage, weights)
        moments = blockwise_moments(H, g, sizes, q, eta=0.6)
        close(moments.mean, mean)
        close(moments.variance, exact_mean((damage - mean) ** 2, weights))


@pytest.mark.parametrize(("sizes", "q"), SMALL)
def test_blockwise_curvature_exactly(sizes, q):
    blocks, weights = quadrature(q, sizes)
    P = blockwise_shape(blocks)
    for kind in KINDS:
        H = curvature(kind, sum(sizes))
        close(exact_mean(P.mT @ H @ P, weights), blockwise_curvature(H, sizes, q))


@pytest.mark.parametrize(("kind", "sizes", "q", "samples"), LARGE)
def test_moments_by_monte_carlo(kind, sizes, q, samples):
    H, g = curvature(kind, sum(sizes)), gradient(sum(sizes))
    mean, variance = blockwise_moments(H, g, sizes, q)

    def statistic(*blocks):
        centred = literal_damages(H, g, blocks) - mean
        return torch.stack([centred, centred**2], dim=-1)

    found = monte_carlo(statistic, q, sizes, samples, seed=30)
    assert worst_z(found, torch.stack([torch.zeros_like(mean), variance])) < 5
    assert found.error[1] < 0.25 * variance


@pytest.mark.parametrize(("kind", "sizes", "q", "samples"), LARGE[:3])
def test_mean_and_covariance_of_the_shaped_blocks_by_monte_carlo(kind, sizes, q, samples):
    g = gradient(sum(sizes))
    mean = scaled_fo_direction(g, sizes, q)

    def statistic(*blocks):
        centred = literal_blockwise(g, blocks) - mean
        return torch.cat([centred[:, None], centred[:, :, None] * centred[:, None, :]], dim=1)

    found = monte_carlo(statistic, q, sizes, samples, seed=31)
    covariance = torch.block_diag(*blockwise_covariances(g, sizes, q))
    assert worst_z(found, torch.cat([torch.zeros_like(mean)[None], covariance])) < 6


@pytest.mark.parametrize("kind", KINDS)
def test_gap_is_the_sum_over_blocks_and_pairs(kind):
    sizes, q, eta = [3, 1, 4], [2, 5, 1], 0.7
    H, g = curvature(kind, 8), gradient(8)
    rows, parts = g.split(sizes), blockwise_gap_parts(H, g, sizes, q, eta)
    a = [(c / (c + d + 1)) ** 0.5 for c, d in zip(q, sizes, strict=True)]
    blocks = [list(row.split(sizes, dim=1)) for row in H.split(sizes)]
    within = [damage_gap(blocks[b][b], rows[b], q[b], eta) for b in range(3)]
    pairs = [
        eta**2 * (1 - a[b] * a[c]) * rows[b] @ blocks[b][c] @ rows[c]
        for b, c in combinations(range(3), 2)
    ]
    close(parts.within, torch.stack(within))
    close(parts.between, sum(pairs))
    close(parts.total, blockwise_gap(H, g, sizes, q, eta))
    shaped = eta**2 / 2 * g @ blockwise_curvature(H, sizes, q) @ g
    close(blockwise_gap(H, g, sizes, q, eta), fo_damage(H, g, eta) - shaped, rtol=1e-8)


def test_one_block_is_the_global_identity():
    H, g = curvature("indefinite", 9), gradient(9)
    close(blockwise_gap(H, g, [9], 4), damage_gap(H, g, 4))
    close(blockwise_curvature(H, [9], 4), expected_curvature(H, 4))
    close(blockwise_moments(H, g, [9], 4).variance, damage_moments(H, g, 4).variance)


def test_block_diagonal_curvature_adds_up():
    sizes, q = [3, 4], [2, 5]
    parts = [curvature("psd", d, seed=d) for d in sizes]
    H, g = torch.block_diag(*parts), gradient(7)
    moments = [damage_moments(h, v, c) for h, v, c in zip(parts, g.split(sizes), q, strict=True)]
    found = blockwise_moments(H, g, sizes, q)
    close(found.mean, sum(m.mean for m in moments))
    close(found.variance, sum(m.variance for m in moments))
    assert blockwise_variance(H, g, sizes, q).coupling == 0


@pytest.mark.parametrize("kind", KINDS)
def test_variance_is_the_formula_of_the_notes_with_dense_covariances(kind):
    sizes, q = [3, 1, 4], [2, 5, 1]
    H, g = curvature(kind, 8), gradient(8)
    sigmas, mean = blockwise_covariances(g, sizes, q), scaled_fo_direction(g, sizes, q)
    blocks = [list(row.split(sizes, dim=1)) for row in H.split(sizes)]
    rows, means = g.split(sizes), mean.split(sizes)
    total = torch.zeros((), dtype=torch.float64)
    for b in range(3):
        r = sum(blocks[b][c] @ means[c] for c in range(3) if c != b)
        total += damage_moments(blocks[b][b], rows[b], q[b]).variance + r @ sigmas[b] @ r
        total += 2 * quadratic_linear_covariance(blocks[b][b], rows[b], r, q[b]) / 2
    for b, c in combinations(range(3), 2):
        total += torch.trace(blocks[b][c] @ sigmas[c] @ blocks[c][b] @ sigmas[b])
    close(blockwise_variance(H, g, sizes, q).total, total)


def test_every_source_of_variance_matters():
    # Otherwise a formula that forgot one of them would pass on this curvature.
    H, g = curvature("indefinite", 8), gradient(8)
    parts = blockwise_variance(H, g, [3, 1, 4], [2, 5, 1])
    sums = [parts.within.sum(), parts.drift.sum(), parts.mixed.sum(), parts.coupling]
    assert all(abs(part) > 0.01 * parts.total for part in sums)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_and_residual_decomposition(kind):
    sizes, q, eta = [3, 1, 4], [2, 5, 1], 0.7
    H, g = curvature(kind, 8), gradient(8)
    parts = blockwise_decomposition(H, g, sizes, q, eta)
    close(parts.total, blockwise_moments(H, g, sizes, q, eta).mean)
    close(parts.mean_step, quadratic_damage(H, -eta * scaled_fo_direction(g, sizes, q)))


@pytest.mark.parametrize("kind", KINDS)
def test_decomposition_holds_for_any_residual_law(kind):
    # Rademacher residuals times a root of Sigma: all of their 2^5 sign patterns, averaged exactly.
    H, mean = curvature(kind, 5), gradient(5)
    roots = [normal(2, 2, seed=32), normal(3, 3, seed=33)]
    sigmas = [root @ root.mT for root in roots]
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 5)
    residuals = signs @ torch.block_diag(*roots).mT
    parts = expected_damage_decomposition(H, mean, sigmas)
    close(parts.total, quadratic_damage(H, mean + residuals).mean())
    fluctuation = coupling_fluctuation(H, residuals, sigmas)
    damages = quadratic_damage(H, residuals)
    close(fluctuation.total, damages - damages.mean())
    cross = torch.stack([e[:2] @ H[:2, 2:] @ e[2:] for e in residuals])
    close(fluctuation.between, cross)
    assert fluctuation.between.abs().max() > 0.1


@pytest.mark.parametrize(("q_b", "q_c"), [(1, 3), (4, 2)])
def test_cross_block_operator_fluctuation(q_b, q_c):
    left, right, block = (
        normal(5, q_b, 2, seed=34),
        normal(5, q_c, 3, seed=35),
        normal(2, 3, seed=36),
    )
    a = (q_b / (q_b + 3)) ** 0.5 * (q_c / (q_c + 4)) ** 0.5
    direct = literal_shape(left).mT @ block @ literal_shape(right) - a * block
    close(coupling_fluctuation_operator(block, left, right), direct)


def test_blockwise_is_batched():
    g = normal(3, 6, seed=37)
    H = torch.stack([curvature("psd", 6, seed=i) for i in range(3)])
    for function in (blockwise_gap, lambda *a: blockwise_moments(*a).variance):
        expected = torch.stack([function(H[i], g[i], [2, 4], [1, 3]) for i in range(3)])
        close(function(H, g, [2, 4], [1, 3]), expected)
        shared = torch.stack([function(H[0], g[i], [2, 4], [1, 3]) for i in range(3)])
        close(function(H[0], g, [2, 4], [1, 3]), shared)


def test_a_zero_block_changes_nothing():
    H, g = curvature("indefinite", 6), gradient(6)
    g[2:4] = 0
    keep = torch.tensor([0, 1, 4, 5])
    small = blockwise_moments(H[keep][:, keep], g[keep], [2, 2], 3)
    whole = blockwise_moments(H, g, [2, 2, 2], 3)
    close(whole.mean, small.mean)
    close(whole.variance, small.variance)
