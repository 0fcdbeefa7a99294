"""The filter theorem: all of its filters, and what happens outside it (beyond the paper)."""

import pytest
import torch

from risegrad.theory import (
    best_gain,
    best_step,
    directional_curvature,
    effective_dimension,
    efficiency_gain,
    filter_certificate,
    filtered_step,
    quadratic_damage,
    ridge,
    ridge_step,
)
from theory_reference import PSD, close, curvature, eye, generator, gradient, normal, rotation

CASES = 2_000
ROUNDING = 1e-9


def random_problems(d, seed):
    """Curvatures of up to eight decades in random bases, and gradients of uneven energy."""
    draws = generator(seed)
    decades = 8 * torch.rand(CASES, 1, generator=draws, dtype=torch.float64)
    values = 10 ** (-decades * torch.rand(CASES, d, generator=draws, dtype=torch.float64))
    basis = torch.linalg.qr(normal(CASES, d, d, seed=seed + 1)).Q
    H = (basis * values[:, None, :]) @ basis.mT
    g = normal(CASES, d, seed=seed + 2) * 10 ** normal(CASES, d, seed=seed + 3)
    return (H + H.mT) / 2, g


def any_admissible_filter(seed):
    """Every filter of the theorem up to scale: from one eigenvalue to the next it may stay, fall
    as one over the eigenvalue, or anything between, and each case decides at random."""

    def f(values):
        share = torch.rand(values[..., 1:].shape, generator=generator(seed), dtype=torch.float64)
        share = (2 * share - 0.5).clamp(0, 1)  # the two extremes are frequent
        falls = (share * values.clamp_min(1e-300).log().diff(dim=-1)).cumsum(-1)
        return torch.cat([torch.ones_like(values[..., :1]), (-falls).exp()], dim=-1)

    return f


@pytest.mark.parametrize("d", [2, 3, 8])
def test_no_filter_of_the_theorem_does_more_damage_than_fo(d):
    H, g = random_problems(d, seed=d)
    found = filter_certificate(H, g, any_admissible_filter(seed=50 + d))
    assert found.at_equal_progress.all()
    assert found.gain.shape == (CASES,)
    assert (found.gain >= 1 - ROUNDING).all()
    assert (found.norm_ratio <= 1 + ROUNDING).all()
    # and the theorem is not about nothing
    assert (found.gain > 1.1).double().mean() > 0.2


def test_a_random_mixture_of_ridges_is_such_a_filter():
    H, g = random_problems(5, seed=70)
    weight, rho = normal(CASES, 4, seed=71).abs(), 10 ** (3 * normal(CASES, 4, seed=72) - 3)

    def f(values):
        return (weight[:, None] / (values[..., None] + rho[:, None])).sum(-1)

    found = filter_certificate(H, g, f)
    assert found.at_equal_progress.all()
    assert (found.gain >= 1 - ROUNDING).all()
    assert (found.norm_ratio <= 1 + ROUNDING).all()


def test_the_certificate_is_of_the_literal_inequalities():
    H, g = curvature("psd", 9), gradient(9)
    x = ridge_step(H, g, 0.1)
    found = filter_certificate(H, g, ridge(0.1))
    close(found.norm_ratio, (x @ H @ x / (x @ x)) / (g @ H @ g / (g @ g)))
    close(found.gain, (g @ x) ** 2 * (g @ H @ g) / ((g @ g) ** 2 * (x @ H @ x)))


@pytest.mark.parametrize("kind", PSD)
def test_filters_agree_with_dense_matrices(kind):
    H, g = curvature(kind, 10), gradient(10)
    for rho in (0.01, 1.0, 30.0):
        close(ridge_step(H, g, rho), torch.linalg.inv(H + rho * eye(10)) @ g, rtol=1e-8)
        close(
            effective_dimension(H, rho),
            torch.trace(H @ torch.linalg.inv(H + rho * eye(10))),
            rtol=1e-8,
        )
    root = filtered_step(H, g, lambda values: values.sqrt())
    close(root @ root, g @ H @ g)


def test_damping_leads_from_the_best_step_to_fo():
    H = curvature("rotated", 10)
    g = gradient(10)
    gains = [efficiency_gain(H, g, ridge_step(H, g, 10.0**-k)) for k in range(-6, 9)]
    assert (torch.stack(gains).diff() > -ROUNDING).all()
    close(gains[0], 1.0, rtol=1e-4)
    close(gains[-1], best_gain(H, g), rtol=1e-4)
    close(ridge_step(H, g, 1e-9), best_step(H, g), rtol=1e-5)


def test_the_ridge_step_does_the_least_damage_at_its_progress_and_norm():
    H, g, rho = curvature("psd", 6), gradient(6), 0.3
    x = ridge_step(H, g, rho)
    across = normal(500, 6, seed=1)
    across -= torch.outer(across @ g, g) / (g @ g)
    others = x + 0.3 * across  # the same progress
    shorter = others.norm(dim=-1) <= x.norm()
    assert shorter.sum() > 100
    assert (quadratic_damage(H, others[shorter]) > quadratic_damage(H, x)).all()
    # The multiplier says more: below every step of equal progress in damage plus squared norm.
    damped = H + rho * eye(6)
    assert (quadratic_damage(damped, others) > quadratic_damage(damped, x)).all()


def test_effective_dimension_counts_directions():
    H = torch.diag(torch.tensor([0.0, 1e-6, 1.0, 1e6]))
    close(effective_dimension(H, 1e-12), 3.0, rtol=1e-5)
    close(effective_dimension(H, 1.0), 1.5, rtol=1e-5)
    assert effective_dimension(H, 1e12) < 1e-5


def weighted(values, energies):
    """A diagonal problem: eigenvalues and the gradient's share of energy in each."""
    shares = torch.tensor(energies, dtype=torch.float64)
    return torch.diag(torch.tensor(values, dtype=torch.float64)), (shares / shares.sum()).sqrt()


def test_falling_too_fast_can_lose_at_equal_progress():
    # f = 1/lambda^2: lambda f falls. A trace of energy on a flat direction takes the whole step.
    H, g = weighted([0.01, 1.0], [1e-4, 1.0])
    found = filter_certificate(H, g, lambda values: values**-2)
    assert found.at_equal_norm
    assert not found.damage_rising
    assert found.norm_ratio < 1
    assert found.gain < 0.1


def test_a_hard_projection_can_lose_at_equal_progress():
    # The limit of GPM: what lies along sensitive directions is cut away. At equal norm the theorem
    # still holds; at equal progress little is left of the gradient and must be made longer.
    H, g = weighted([1.0, 2.0], [0.1, 0.9])
    found = filter_certificate(H, g, lambda values: (values < 1.5).double())
    assert found.at_equal_norm
    assert not found.at_equal_progress
    assert found.norm_ratio < 1
    close(found.gain, 0.1 * 1.9)


def test_a_rising_filter_never_gains():
    H, g = random_problems(5, seed=80)
    found = filter_certificate(H, g, lambda values: values**0.7)
    assert not found.falling.any()
    assert (found.gain <= 1 + ROUNDING).all()
    assert (found.norm_ratio >= 1 - ROUNDING).all()


def test_a_filter_that_changes_sign_is_not_certified():
    H, g = curvature("psd", 4), gradient(4)
    found = filter_certificate(H, g, lambda values: 0.3 - values)
    assert found.falling
    assert not found.nonnegative
    assert not found.at_equal_norm


def test_rounding_between_equal_eigenvalues_breaks_no_condition():
    basis = rotation(6, 3)
    H = (basis * torch.tensor([1.0, 1, 1, 4, 4, 4], dtype=torch.float64)) @ basis.mT
    assert filter_certificate((H + H.mT) / 2, gradient(6), ridge(1e-3)).at_equal_progress


def test_the_update_of_another_optimizer_keeps_the_norm_half_only():
    # Shaping an update u instead of g: at equal norm all stands with u in the place of g, but
    # progress is measured by g, and the filtered update can even go uphill.
    H, u = torch.diag(torch.tensor([0.0, 1.0])), torch.tensor([1.0, 1.0])
    g, x = torch.tensor([-1.0, 2.0]), ridge_step(H, u, 0.1)
    assert g @ u > 0
    assert g.double() @ x < 0
    assert directional_curvature(H, x) < directional_curvature(H, u)


def test_tensors_matched_in_norm_one_by_one_can_lose_at_equal_progress():
    # Each tensor alone gains, and together they do no more damage at equal norm; but the tensor
    # with little damage slows down most, and the other one has to make up for it.
    flat, steep = torch.diag(torch.tensor([5.0, 5.0])), torch.diag(torch.tensor([0.01, 1.0]))
    g = torch.tensor([1.0, 1.0]).double()
    parts = [ridge_step(H, g, 0.01) for H in (flat, steep)]
    gains = [efficiency_gain(H, g, x) for H, x in zip((flat, steep), parts, strict=True)]
    both, whole = torch.block_diag(flat, steep), torch.cat([g, g])
    close(gains[0], 1.0)
    assert gains[1] > 5

    by_norm = torch.cat([x * g.norm() / x.norm() for x in parts])
    close(by_norm.norm(), whole.norm())
    assert directional_curvature(both, by_norm) < directional_curvature(both, whole)
    assert efficiency_gain(both, whole, by_norm) < 0.9

    # Matched in progress one by one, nothing can be lost.
    by_progress = torch.cat([x * (g @ g) / (g @ x) for x in parts])
    assert efficiency_gain(both, whole, by_progress) > 1


def test_single_precision_comes_out_double():
    thin = normal(6, 2, seed=7).float()
    H, g = thin @ thin.mT, torch.ones(6)
    found = filter_certificate(H, g, ridge(0.1))
    assert found.gain.dtype == torch.float64
    assert found.at_equal_progress
    assert found.gain > 1
    assert 0 < effective_dimension(H, 0.1) < 2.001


def test_filters_are_batched():
    H = torch.stack([curvature("psd", 5, seed) for seed in range(3)])
    g = normal(3, 5, seed=5)
    found = filter_certificate(H, g, ridge(0.2))
    for i in range(3):
        close(ridge_step(H, g, 0.2)[i], ridge_step(H[i], g[i], 0.2))
        close(found.gain[i], filter_certificate(H[i], g[i], ridge(0.2)).gain)
        close(effective_dimension(H, 0.2)[i], effective_dimension(H[i], 0.2))
