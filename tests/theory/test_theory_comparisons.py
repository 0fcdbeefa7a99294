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
def test_a_smaller_fo_step_always_does_less_damage_in_one_step(kind, which):
    # Even along the sharpest direction, where matched norm speaks most for shaping.
    H = curvature(kind, 32) + 1e-6 * eye(32)
    g = torch.linalg.eigh(H).eigenvectors[:, which]
    both = compare_steps(H, g, 4)
    assert both.matched_progress.damage_ratio < 1
    assert (both.matched_norm.damage_ratio > 1) == (which == -1)


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
