"""The randomized law in a metric, against Algorithm 1 in transformed coordinates."""

import pytest
import torch

from risegrad.theory import (
    effective_dimension,
    efficiency,
    expected_damage,
    metric_damage,
    metric_efficiency,
    metric_mean,
    metric_progress,
    metric_second_moment,
    metric_squared_norm,
    metric_step,
    norm_matched_mean,
    ridge_metric,
    ridge_step,
    zo_exposure,
)
from risegrad.theory.calibration import mean_factor
from theory_reference import (
    PSD,
    close,
    curvature,
    exact_mean,
    eye,
    gradient,
    literal_shape,
    monte_carlo,
    normal,
    quadrature,
    worst_z,
)


def literal_step(P, g, directions):
    """Algorithm 1 between two roots of ``P``, which singular values give."""
    left, values, right = torch.linalg.svd(P)
    root = left @ torch.diag(values.sqrt()) @ right
    return literal_shape(directions) @ (root @ g) @ root.mT


@pytest.mark.parametrize(("d", "q"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_the_law_exactly(d, q):
    (rows,), weights = quadrature([q], [d])
    H, P, g = curvature("psd", d), curvature("psd", d, seed=5), gradient(d)
    x = literal_step(P, g, rows)
    close(metric_step(P, g, rows), x)
    close(exact_mean(x, weights), metric_mean(P, g, q))
    close(exact_mean(x[:, :, None] * x[:, None, :], weights), metric_second_moment(P, g, q))
    close(exact_mean(x.square().sum(-1), weights), metric_squared_norm(P, g, q))
    close(0.3 * exact_mean(x @ g, weights), metric_progress(P, g, q, eta=0.3))
    damage = 0.3**2 / 2 * ((x @ H) * x).sum(-1)
    close(exact_mean(damage, weights), metric_damage(H, P, g, q, eta=0.3))
    in_metric = ((x @ torch.linalg.inv(P)) * x).sum(-1)
    close(exact_mean(in_metric, weights), g @ P @ g)  # what kappa matches


@pytest.mark.parametrize(
    ("kind", "d", "q", "rho"),
    [("psd", 24, 4, 0.3), ("low_rank", 40, 1, 0.1), ("rotated", 16, 16, 1)],
)
def test_the_informed_law_by_monte_carlo(kind, d, q, rho):
    H, g = curvature(kind, d), gradient(d)
    P = torch.linalg.inv(H + rho * eye(d))
    close(ridge_metric(H, rho), P)

    def both(rows):
        x = literal_step(P, g, rows)
        progress, damage = x @ g, ((x @ H) * x).sum(-1) / 2
        return torch.cat([x, progress[:, None], damage[:, None]], dim=-1)

    found = monte_carlo(both, [q], [d], samples=8_000, seed=30)
    parts = metric_mean(P, g, q), metric_progress(P, g, q), metric_damage(H, P, g, q)
    assert worst_z(found, torch.cat([part.reshape(-1) for part in parts])) < 5


@pytest.mark.parametrize("kind", PSD)
def test_damage_in_the_metric_of_the_ridge_pays_the_effective_dimension(kind):
    d, q, rho, eta = 12, 3, 0.2, 0.5
    H, g = curvature(kind, d), gradient(d)
    P = torch.linalg.inv(H + rho * eye(d))
    signal, energy = g @ P @ H @ P @ g, g @ P @ g
    expected = eta**2 / 2 * ((q + 1) * signal + energy * effective_dimension(H, rho)) / (q + d + 1)
    close(metric_damage(H, ridge_metric(H, rho), g, q, eta), expected)


@pytest.mark.parametrize("q", [1, 4, 64])
def test_no_metric_is_rise(q):
    H, g = curvature("psd", 9), gradient(9)
    close(metric_mean(eye(9), g, q), norm_matched_mean(g, q))
    close(metric_second_moment(eye(9), g, q), zo_exposure(g, q))
    close(metric_damage(H, eye(9), g, q, 0.2), expected_damage(H, g, q, 0.2))
    close(metric_squared_norm(eye(9), g, q), g @ g)
    rows = normal(q, 9, seed=1)
    close(metric_step(eye(9), g, rows), literal_shape(rows) @ g)
    # Much damping is no metric either, up to the scale that a step size takes away.
    close(metric_efficiency(H, ridge_metric(H, 1e9), g, q), metric_efficiency(H, eye(9), g, q),
          rtol=1e-6)  # fmt: skip


def test_many_directions_are_the_informed_step_without_noise():
    H, g, many = curvature("psd", 9), gradient(9), 10**9
    P, x = ridge_metric(H, 0.1), ridge_step(H, g, 0.1)
    close(metric_mean(P, g, many), x, rtol=1e-7)
    close(metric_second_moment(P, g, many), torch.outer(x, x), rtol=1e-6)
    close(metric_efficiency(H, P, g, many), efficiency(H, g, x), rtol=1e-6)


@pytest.mark.parametrize("kind", PSD)
def test_noise_always_costs_at_equal_progress(kind):
    H, g = curvature(kind, 10), gradient(10)
    for rho in (0.01, 1.0):
        P = ridge_metric(H, rho)
        steps = [metric_efficiency(H, P, g, q) for q in (1, 2, 8, 64, 1024)]
        assert (torch.stack(steps).diff() > 0).all()
        assert steps[-1] < efficiency(H, g, P @ g)


def test_efficiency_is_of_mean_progress_and_mean_damage():
    H, P, g, q = curvature("psd", 6), curvature("psd", 6, seed=3), gradient(6), 3
    ratio = metric_progress(P, g, q, 0.4) ** 2 / (2 * metric_damage(H, P, g, q, 0.4))
    close(metric_efficiency(H, P, g, q), ratio)
    close(metric_progress(P, g, q), mean_factor(6, q) * g @ P @ g)


def test_the_plain_norm_is_not_matched_in_a_metric():
    P, g = torch.diag(torch.tensor([1.0, 1e-4])), torch.tensor([0.0, 1.0])
    # g along a sensitive direction: most of the noise goes elsewhere and is longer than P g.
    assert metric_squared_norm(P, g, 1) > 1e3 * (P @ g).square().sum()
    assert metric_squared_norm(P, g, 1) < 1e-3 * g.square().sum()


def test_a_gradient_on_top_of_the_spectrum_is_better_off_with_blind_noise():
    # Informed noise costs d_rho/g'Pg where blind noise costs tr H/|g|^2. Along the most curved
    # direction knowing H gains nothing without noise, and loses with it.
    H = torch.diag(torch.tensor([0.01] * 20 + [1.0], dtype=torch.float64))
    g = eye(21)[-1]
    P = ridge_metric(H, 0.05)
    assert effective_dimension(H, 0.05) / (g @ P @ g) > 3 * torch.trace(H)
    assert metric_efficiency(H, P, g, 4) < 0.7 * metric_efficiency(H, eye(21), g, 4)
    # A gradient whose energy follows the spectrum pays the same; a flatter one pays less.
    follows = H.diagonal().sqrt()
    blind = H.trace() / follows.square().sum()
    close(effective_dimension(H, 0.05) / (follows @ P @ follows), blind)
    even = torch.ones(21)
    assert metric_efficiency(H, P, even, 4) > 2 * metric_efficiency(H, eye(21), even, 4)


def test_single_precision_comes_out_double():
    thin = normal(6, 2, seed=7).float()
    H, g = thin @ thin.mT, torch.ones(6)
    P = ridge_metric(H, 0.1).float()
    assert P.dtype == torch.float32
    assert metric_efficiency(H, P, g, 2).dtype == torch.float64
    assert metric_step(P, g, torch.ones(2, 6)).dtype == torch.float64


def test_the_law_is_batched():
    H = torch.stack([curvature("psd", 4, seed) for seed in range(3)])
    P, g = ridge_metric(H, 0.3), normal(3, 4, seed=2)
    for i in range(3):
        close(P[i], ridge_metric(H[i], 0.3))
        close(metric_second_moment(P, g, 2)[i], metric_second_moment(P[i], g[i], 2))
        close(metric_damage(H, P, g, 2)[i], metric_damage(H[i], P[i], g[i], 2))
        close(metric_efficiency(H, P, g, 2)[i], metric_efficiency(H[i], P[i], g[i], 2))
