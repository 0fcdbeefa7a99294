"""Progress per damage, the best step and its bounds (beyond the paper)."""

import pytest
import torch

from risegrad.theory import (
    best_efficiency,
    best_gain,
    best_step,
    efficiency,
    efficiency_gain,
    fo_damage,
    kantorovich_bound,
    quadratic_damage,
)
from theory_reference import PSD, close, curvature, gradient, normal, rotation


def in_range(H, seed=0):
    """A gradient that sees curvature only: ``H`` times a random vector."""
    return H @ gradient(len(H), seed)


@pytest.mark.parametrize("kind", PSD)
def test_efficiency_compares_damage_at_equal_progress(kind):
    H, g = curvature(kind, 12), in_range(curvature(kind, 12))
    for seed in range(10):
        x = normal(12, seed=seed)
        same_progress = x * (g @ g) / (g @ x)
        close(g @ same_progress, g @ g)
        close(efficiency(H, g, x), (g @ g) ** 2 / (2 * quadratic_damage(H, same_progress)))
        close(efficiency_gain(H, g, x), fo_damage(H, g) / quadratic_damage(H, same_progress))
        close(efficiency(H, g, -3 * x), efficiency(H, g, x))


def test_gain_against_another_step_is_the_ratio_of_efficiencies():
    H, g, x, other = curvature("psd", 7), gradient(7), normal(7, seed=1), normal(7, seed=2)
    close(efficiency_gain(H, g, x, other), efficiency(H, g, x) / efficiency(H, g, other))
    close(efficiency_gain(H, g, x, g), efficiency_gain(H, g, x))


@pytest.mark.parametrize("kind", PSD)
def test_no_step_is_more_efficient_than_the_best(kind):
    H = curvature(kind, 12)
    g = in_range(H)
    best = best_step(H, g)
    close(best, torch.linalg.pinv(H, hermitian=True) @ g, rtol=1e-7)
    close(efficiency(H, g, best), best_efficiency(H, g), rtol=1e-8)
    others = torch.cat([normal(500, 12, seed=3), best + 0.01 * normal(500, 12, seed=4)])
    assert (efficiency(H, g, others) <= best_efficiency(H, g) * (1 + 1e-9)).all()


def test_what_lies_outside_the_range_changes_no_efficiency():
    H = curvature("low_rank", 12)
    g = in_range(H)
    null = torch.linalg.eigh(H).eigenvectors[:, 0]
    close(efficiency(H, g, best_step(H, g) + 5 * null), best_efficiency(H, g), rtol=1e-8)


def test_a_gradient_outside_the_range_has_steps_of_any_efficiency():
    # The condition that the best step needs: a little progress for free beats every bound.
    H, g = torch.diag(torch.tensor([0.0, 1.0])), torch.tensor([1e-3, 1.0])
    steps = [torch.tensor([free, 1.0]) for free in (0.0, 1e3, 1e6)]
    found = [efficiency(H, g, x).item() for x in steps]
    assert found[0] < found[1] < found[2]
    assert found[2] > 1e5
    with pytest.raises(ValueError, match=r"g must be in the range of H, got a part 0\.001 of"):
        best_step(H, g)


@pytest.mark.parametrize("kind", PSD)
def test_the_best_gain_is_between_one_and_kantorovich(kind):
    H = curvature(kind, 12)
    bound = kantorovich_bound(H)
    for seed in range(50):
        g = in_range(H, seed)
        gain = best_gain(H, g)
        close(gain, (g @ H @ g) * best_efficiency(H, g) / (g @ g) ** 2, rtol=1e-8)
        assert 1 <= gain <= bound * (1 + 1e-9)


def test_kantorovich_is_attained_by_the_two_ends_of_the_spectrum():
    values, basis = torch.tensor([0.0, 0.2, 1.0, 5.0], dtype=torch.float64), rotation(4, 0)
    H = (basis * values) @ basis.mT
    g = basis[:, 1] + basis[:, 3]
    close(best_gain(H, g), kantorovich_bound(H))
    close(kantorovich_bound(H), 5.2**2 / 4)


def test_there_is_nothing_to_gain_where_one_eigenvalue_is_seen():
    values, basis = torch.tensor([2.0, 2.0, 5.0], dtype=torch.float64), rotation(3, 1)
    H = (basis * values) @ basis.mT
    close(best_gain(H, basis[:, 0] - 3 * basis[:, 1]), 1.0)
    assert best_gain(H, basis[:, 0] + 0.1 * basis[:, 2]) > 1.005


def test_the_gain_of_a_wrong_curvature_can_be_below_one():
    H, g = torch.diag(torch.tensor([1.0, 9.0])), torch.tensor([1.0, 1.0])
    wrong = torch.diag(torch.tensor([9.0, 1.0]))
    assert efficiency_gain(H, g, best_step(H, g)) > 2
    assert efficiency_gain(H, g, best_step(wrong, g)) < 0.7


def test_efficiencies_are_batched():
    H = torch.stack([curvature("psd", 5, seed) for seed in range(3)])
    g, x = normal(3, 5, seed=5), normal(3, 5, seed=6)
    for i in range(3):
        close(efficiency_gain(H, g, x)[i], efficiency_gain(H[i], g[i], x[i]))
        close(best_step(H, g)[i], best_step(H[i], g[i]))
        close(best_gain(H, g)[i], best_gain(H[i], g[i]))
        close(kantorovich_bound(H)[i], kantorovich_bound(H[i]))


def test_single_precision_comes_out_double_and_keeps_its_rank():
    thin = normal(6, 2, seed=7).float()
    H = thin @ thin.mT
    g = H @ torch.ones(6)
    assert best_step(H, g).dtype == torch.float64
    assert 1 <= best_gain(H, g) <= kantorovich_bound(H)
