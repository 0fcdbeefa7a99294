"""Per-block scores and the block-coupling perturbation (Appendix C, Proposition C.4)."""

import pytest
import torch

from risegrad.theory import (
    block_coupling,
    blockwise_covariances,
    blockwise_gap_parts,
    blockwise_variance,
    coupling_scores,
    damage_densities,
    expected_damage_decomposition,
    flat_signal_scores,
    gap_from_scalars,
    inverse_sandwich,
    isotropic_residual_damage,
    shaping_scores,
)
from theory_reference import KINDS, close, curvature, eye, gradient, normal

SIZES = [3, 1, 4]


def coupled(strength, seed=0):
    """Positive definite blocks with couplings of a chosen size."""
    blocks = torch.block_diag(*(curvature("psd", d, seed) + 0.5 * eye(d) for d in SIZES))
    between = curvature("indefinite", 8, seed)
    mask = torch.block_diag(*(torch.ones(d, d) for d in SIZES)) == 0
    return blocks + strength * between * mask


@pytest.mark.parametrize("kind", KINDS)
def test_shaping_scores_are_the_gaps_inside_the_blocks(kind):
    H, g, q = curvature(kind, 8), gradient(8), [2, 5, 1]
    scores = shaping_scores(H, g, SIZES, q, eta=0.5)
    close(scores, blockwise_gap_parts(H, g, SIZES, q, eta=0.5).within)
    for b, (start, end) in enumerate([(0, 3), (3, 4), (4, 8)]):
        block, v, d = H[start:end, start:end], g[start:end], end - start
        excess = v @ block @ v - torch.trace(block) / d * v @ v
        close(scores[b], 0.5**2 / 2 * d / (q[b] + d + 1) * excess)
        scalars = v @ block @ v, torch.trace(block), v @ v
        close(gap_from_scalars(*scalars, d=d, q=q[b], eta=0.5), scores[b])


def test_densities_price_isotropic_exposure():
    H = curvature("psd", 8)
    densities, alphas = damage_densities(H, SIZES), [0.1, 2.0, 0.7]
    priced = sum(a * d * D for a, d, D in zip(alphas, SIZES, densities, strict=True)) / 2
    close(isotropic_residual_damage(H, SIZES, alphas), priced)
    sigmas = [a * eye(d) for a, d in zip(alphas, SIZES, strict=True)]
    parts = expected_damage_decomposition(H, torch.zeros(8), sigmas)
    close(isotropic_residual_damage(H, SIZES, alphas), parts.total)


@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_flat_signal_scores(rho):
    H, g = coupled(0.1), gradient(8)
    scores = flat_signal_scores(H, g, SIZES, rho)
    for b, (start, end) in enumerate([(0, 3), (3, 4), (4, 8)]):
        inverse = torch.linalg.inv(H[start:end, start:end] + rho * eye(end - start))
        close(scores[b], g[start:end] @ inverse @ g[start:end])
    assert (flat_signal_scores(H, g, SIZES, rho + 1) < scores).all()


def test_flat_signal_score_is_large_where_the_signal_meets_flat_directions():
    H = torch.diag(torch.tensor([10.0, 0.1], dtype=torch.float64))
    flat, sharp = (flat_signal_scores(H, v, [2]) for v in (eye(2)[1], eye(2)[0]))
    assert flat > 50 * sharp


def test_coupling_scores_with_dense_roots():
    H, g = coupled(0.7), gradient(8)
    sigmas = blockwise_covariances(g, SIZES, 2)
    roots = [torch.linalg.cholesky(s) for s in sigmas]
    blocks = [list(row.split(SIZES, dim=1)) for row in H.split(SIZES)]
    for b in range(3):
        others = [c for c in range(3) if c != b]
        shaped = sum((roots[b].mT @ blocks[b][c] @ roots[c]).norm() for c in others)
        raw = sum(blocks[b][c].norm() for c in others)
        close(coupling_scores(H, SIZES, sigmas)[b], shaped)
        close(coupling_scores(H, SIZES)[b], raw)


def test_coupling_score_of_two_blocks_is_a_standard_deviation():
    H, g = curvature("indefinite", 5), gradient(5)
    sigmas = blockwise_covariances(g, [2, 3], 4)
    score = coupling_scores(H, [2, 3], sigmas)
    close(score**2, blockwise_variance(H, g, [2, 3], 4).coupling)


@pytest.mark.parametrize("strength", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("seed", range(3))
def test_inverse_is_inside_the_sandwich(strength, seed):
    H = coupled(strength, seed)
    both = inverse_sandwich(H, SIZES)
    inverse = torch.linalg.inv(H)
    scale = torch.linalg.matrix_norm(inverse, ord=2)
    for difference in (inverse - both.lower, both.upper - inverse):
        assert torch.linalg.eigvalsh(difference)[0] >= -1e-10 * scale
    close(both.epsilon, block_coupling(H, SIZES))
    if strength == 0:
        assert both.epsilon == 0
        close(both.lower, inverse)


def test_sandwich_is_tight_for_two_coordinates():
    # With two one-dimensional blocks both sides are attained, in the two eigendirections of K.
    H = torch.tensor([[4.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    both, inverse = inverse_sandwich(H, [1, 1]), torch.linalg.inv(H)
    for difference in (inverse - both.lower, both.upper - inverse):
        assert torch.linalg.eigvalsh(difference)[0].abs() < 1e-12
        assert torch.linalg.eigvalsh(difference)[1] > 0.1


def test_block_coupling_is_the_largest_relative_coupling():
    H = coupled(0.3)
    blocks = torch.block_diag(*(H.split(SIZES)[i].split(SIZES, dim=1)[i] for i in range(3)))
    root = torch.linalg.cholesky(torch.linalg.inv(blocks))
    K = root.mT @ (H - blocks) @ root
    close(block_coupling(H, SIZES), torch.linalg.eigvalsh(K).abs().max())
    close(torch.linalg.eigvalsh(root.mT @ H @ root), 1 + torch.linalg.eigvalsh(K), rtol=1e-8)


def test_scores_are_batched():
    H = torch.stack([coupled(0.2, seed) for seed in range(2)])
    g = normal(2, 8, seed=40)
    for i in range(2):
        close(flat_signal_scores(H, g, SIZES)[i], flat_signal_scores(H[i], g[i], SIZES))
        close(coupling_scores(H, SIZES)[i], coupling_scores(H[i], SIZES))
        close(shaping_scores(H, g, SIZES, 3)[i], shaping_scores(H[i], g[i], SIZES, 3))
        close(block_coupling(H, SIZES)[i], block_coupling(H[i], SIZES))
