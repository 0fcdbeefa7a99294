"""Matched norm and matched progress side by side."""

import pytest
import torch

from risegrad.theory import (
    average_curvature,
    blockwise_moments,
    blockwise_progress_cost,
    compare_steps,
    directional_curvature,
    quadratic_damage,
    relative_reduction,
    scaled_fo_direction,
    smaller_step_ratio,
)
from risegrad.theory.calibration import mean_factor, tau
from theory_reference import (
    PSD,
    close,
    curvature,
    eye,
    gradient,
    literal_shape,
    monte_carlo,
    normal,
    worst_z,
)


@pytest.mark.parametrize("kind", PSD)
@pytest.mark.parametrize(("d", "q"), [(2, 1), (16, 4), (128, 64)])
def test_matched_progress_and_matched_norm_ratios(kind, d, q):
    H, g = curvature(kind, d), gradient(d)
    both, lam = compare_steps(H, g, q, eta=0.3), directional_curvature(H, g)
    progress = both.matched_progress
    close(progress.damage_ratio, q * lam / ((q + 1) * lam + torch.trace(H)))
    close(progress.fo_progress, progress.shaped_progress)
    assert progress.fo_step == mean_factor(d, q) * 0.3
    norm = both.matched_norm
    mixed = (1 - tau(d, q)) * lam + tau(d, q) * average_curvature(H)
    close(norm.damage_ratio, lam / mixed)
    close(1 - 1 / norm.damage_ratio, relative_reduction(H, g, q), rtol=1e-8)
    assert norm.fo_progress > norm.shaped_progress


@pytest.mark.parametrize("kind", PSD)
@pytest.mark.parametrize("which", [0, -1])
def test_the_smaller_step_theorem(kind, which):
    # Even along the sharpest direction, where matched norm speaks most for shaping.
    H = curvature(kind, 32) + 1e-6 * eye(32)
    g = torch.linalg.eigh(H).eigenvectors[:, which]
    assert smaller_step_ratio(H, g, 4) < 1
    lam = g @ H @ g
    close(smaller_step_ratio(H, g, 4), 4 * lam / (5 * lam + H.trace()))
    assert (compare_steps(H, g, 4).matched_norm.damage_ratio > 1) == (which == -1)


@pytest.mark.parametrize("kind", PSD)
def test_the_smaller_step_theorem_holds_for_any_blind_law(kind):
    """Random steps whose mean is along g, of any law: here a few points with any weights."""
    H, g = curvature(kind, 6), gradient(6)
    for seed in range(200):
        weights = torch.softmax(3 * normal(5, seed=seed), 0)
        x = 10 ** normal(5, 1, seed=seed + 300) * normal(5, 6, seed=seed + 600)
        x = x - weights @ x + 0.3 * g
        close(weights @ (x @ g), 0.3 * g @ g, rtol=1e-8)
        smaller = quadratic_damage(H, 0.3 * g)
        assert weights @ quadratic_damage(H, x) >= smaller * (1 - 1e-9)


def test_comparison_by_monte_carlo():
    H, g, q, eta = curvature("rotated", 10), gradient(10), 3, 0.5
    both = compare_steps(H, g, q, eta).matched_progress

    def statistic(rows):
        x = literal_shape(rows) @ g
        return torch.stack([eta * x @ g, quadratic_damage(H, eta * x)], dim=-1)

    found = monte_carlo(statistic, [q], [10], 20_000, seed=80)
    assert worst_z(found, torch.stack([both.fo_progress, both.shaped_damage])) < 5


@pytest.mark.parametrize("kind", PSD)
def test_blockwise_cost_beyond_the_scaled_fo_control(kind):
    sizes, q, eta = [3, 1, 4], [2, 5, 1], 0.7
    H, g = curvature(kind, 8), gradient(8)
    control = quadratic_damage(H, -eta * scaled_fo_direction(g, sizes, q))
    cost = blockwise_progress_cost(H, g, sizes, q, eta)
    close(cost, blockwise_moments(H, g, sizes, q, eta).mean - control, rtol=1e-8)
    assert cost > 0
