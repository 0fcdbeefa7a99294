"""Finite smoothing and noisy function values (Lemma 3.1, Corollary B.2)."""

import math

import pytest
import torch

from risegrad.theory import (
    gaussian_norm_moment,
    noise_second_moment,
    norm_mismatch_bound,
    quadratic_damage,
    raw_shape,
    residual_bound,
    residual_second_moment_bound,
    smoothing_damage_bound,
    smoothing_damage_scale,
    two_point_estimate,
)
from risegrad.theory.calibration import kappa
from theory_reference import (
    PSD,
    close,
    curvature,
    exact_mean,
    gradient,
    monte_carlo,
    normal,
    quadrature,
    worst_z,
)

L, MU = 1.5, 0.2


def kinked(g):
    """An L-smooth loss with gradient g at 0 whose remainder is as large as smoothness allows."""
    return lambda x: x @ g + L / 2 * (x * x.abs()).sum(-1)


def residual(g, rows, mu=MU):
    estimate = two_point_estimate(kinked(g), torch.zeros_like(g), rows, mu)
    return estimate - raw_shape(rows) @ g


@pytest.mark.parametrize("d", [1, 2, 3, 9])
@pytest.mark.parametrize("order", [2, 4, 6])
def test_gaussian_norm_moments(d, order):
    product = math.prod(d + 2 * k for k in range(order // 2))
    assert math.isclose(gaussian_norm_moment(d, order), product, rel_tol=1e-9)
    if d <= 3:
        (rows,), weights = quadrature([1], [d])
        close(exact_mean(rows.norm(dim=-1)[:, 0] ** order, weights), float(product))


@pytest.mark.parametrize("d", [1, 2, 10, 1000])
def test_third_moment_is_below_the_fourth_s_power_and_close_to_it(d):
    third, simple = gaussian_norm_moment(d, 3), (d * (d + 2)) ** 0.75
    assert third <= simple <= 1.5 * third
    assert gaussian_norm_moment(d, 6) <= 15 * d**3


def test_estimator_is_exact_on_a_quadratic():
    H, g, rows = curvature("indefinite", 5), gradient(5), normal(4, 3, 5, seed=60)
    f = lambda x: x @ g + ((x @ H) * x).sum(-1) / 2  # noqa: E731
    close(two_point_estimate(f, torch.zeros(5), rows, 0.3), raw_shape(rows) @ g)
    theta = gradient(5, seed=1)
    close(two_point_estimate(f, theta, rows, 0.3), raw_shape(rows) @ (g + H @ theta))


@pytest.mark.parametrize("d", [1, 4, 32])
@pytest.mark.parametrize("q", [1, 8])
def test_residual_is_bounded_direction_by_direction(d, q):
    g, rows = gradient(d), normal(500, q, d, seed=61)
    lengths = rows.norm(dim=-1)
    points, f = MU * rows, kinked(g)
    for sign in (1, -1):
        remainder = f(sign * points) - sign * MU * rows @ g
        assert (remainder.abs() <= L * MU**2 / 2 * lengths**2 * (1 + 1e-9)).all()
    slopes = (f(points) - f(-points)) / (2 * MU) - rows @ g
    assert (slopes.abs() <= L * MU / 2 * lengths**2 * (1 + 1e-9)).all()
    close(residual(g, rows), (slopes[..., None] * rows).mean(-2), rtol=1e-8)
    bound = L * MU / (2 * q) * (lengths**3).sum(-1)
    assert (residual(g, rows).norm(dim=-1) <= bound * (1 + 1e-9)).all()


@pytest.mark.parametrize("q", [1, 4])
def test_residual_bounds_are_attained_in_one_dimension(q):
    g = gradient(1)
    norms = lambda rows: residual(g, rows).norm(dim=-1)  # noqa: E731
    found = monte_carlo(norms, [q], [1], 40_000, seed=62, chunk=10_000)
    assert worst_z(found, torch.tensor(residual_bound(1, L, MU))) < 5
    squares = monte_carlo(lambda rows: norms(rows) ** 2, [q], [1], 40_000, seed=62, chunk=10_000)
    bound = residual_second_moment_bound(1, L, MU)
    if q == 1:
        assert worst_z(squares, torch.tensor(bound)) < 5
    else:
        assert squares.mean < bound


@pytest.mark.parametrize(("d", "factor"), [(2, 2), (8, 3), (32, 6)])
def test_residual_bounds_hold_and_are_not_vacuous(d, factor):
    g = gradient(d)
    norms = monte_carlo(lambda rows: residual(g, rows).norm(dim=-1), [1], [d], 10_000, seed=63)
    bound = residual_bound(d, L, MU)
    assert norms.mean + 5 * norms.error < bound < factor * norms.mean


@pytest.mark.parametrize("kind", PSD)
@pytest.mark.parametrize(("d", "q"), [(2, 1), (3, 2), (16, 4)])
def test_damage_and_norm_perturbations_are_bounded(kind, d, q):
    H, g, eta = curvature(kind, d), gradient(d).abs(), 0.7
    a = kappa(d, q) ** -0.5
    top = torch.linalg.eigvalsh(H)[-1]

    def statistic(rows):
        x = a * raw_shape(rows) @ g
        b = a * residual(g, rows)
        change = (quadratic_damage(H, -eta * (x + b)) - quadratic_damage(H, -eta * x)).abs()
        size = 2 * x.norm(dim=-1) * b.norm(dim=-1) + b.square().sum(-1)
        assert (change <= eta**2 / 2 * top * size * (1 + 1e-9)).all()
        return torch.stack([change, (x + b).square().sum(-1) - g @ g], dim=-1)

    found = monte_carlo(statistic, [q], [d], 10_000, seed=64)
    damage, norm = smoothing_damage_bound(H, g, q, L, MU, eta), norm_mismatch_bound(g, q, L, MU)
    assert found.mean[0] + 5 * found.error[0] < damage
    assert found.mean[1].abs() + 5 * found.error[1] < norm
    assert damage <= smoothing_damage_scale(H, g, q, L, MU, eta, constant=math.sqrt(15)) * (
        1 + 1e-9
    )


def test_perturbation_bounds_are_nearly_attained_in_one_dimension():
    # For one query and g > 0 the residual points along g: E|2xb + b^2| needs E|z|^5 and E|z|^6,
    # and Cauchy-Schwarz has put sqrt(E|z|^4 E|z|^6) in the place of the former.
    H, g, half = torch.tensor([[2.0]]), torch.tensor([1.5]), L * MU / 2
    truth = (2 * 1.5 * half * gaussian_norm_moment(1, 5) + 15 * half**2) / 3
    found = float(norm_mismatch_bound(g, 1, L, MU))
    assert truth < found < 1.06 * truth
    close(smoothing_damage_bound(H, g, 1, L, MU, eta=0.7), 0.7**2 / 2 * 2.0 * found)


def test_cross_term_by_cauchy_schwarz():
    g = gradient(3)
    shaped = lambda rows: kappa(3, 2) ** -0.5 * (raw_shape(rows) @ g)  # noqa: E731

    def statistic(rows):
        x, r = shaped(rows).norm(dim=-1), residual(g, rows).norm(dim=-1)
        return torch.stack([x * r, x**2, r**2], dim=-1)

    mean = monte_carlo(statistic, [2], [3], 20_000, seed=65).mean
    bound = g.norm() * mean[2].sqrt()  # E|Pg|^2 = |g|^2
    assert 0.5 * bound < mean[0] < bound


def test_smoothing_scale_in_the_paper_s_form():
    H, g, q, d = curvature("psd", 4), gradient(4), 3, 4
    size = kappa(d, q) ** -0.5 * L * MU * d**1.5
    top = torch.linalg.eigvalsh(H)[-1]
    expected = 2.5 * 0.3**2 / 2 * top * (size * g.norm() + size**2)
    close(smoothing_damage_scale(H, g, q, L, MU, 0.3, constant=2.5), expected)


def test_no_smoothing_no_bound():
    H, g = curvature("psd", 4), gradient(4)
    assert smoothing_damage_bound(H, g, 3, smoothness=0.0, mu=MU) == 0
    assert norm_mismatch_bound(g, 3, smoothness=L, mu=0.0) == 0


@pytest.mark.parametrize(("d", "q"), [(1, 1), (6, 4)])
def test_noisy_function_values(d, q):
    g, sigma = gradient(d), 0.3
    noise = torch.Generator().manual_seed(66)

    def noisy(x):
        extra = torch.randn(x.shape[:-1], generator=noise, dtype=torch.float64)
        return kinked(g)(x) + sigma * extra

    def statistic(rows):
        clean = two_point_estimate(kinked(g), torch.zeros_like(g), rows, MU)
        total = two_point_estimate(noisy, torch.zeros_like(g), rows, MU)
        return (total - clean).square().sum(-1)

    found = monte_carlo(statistic, [q], [d], 20_000, seed=67)
    assert worst_z(found, torch.tensor(noise_second_moment(d, q, MU, sigma))) < 5


def test_noise_widens_the_bounds_by_its_second_moment():
    g, q = gradient(5), 2
    second = residual_second_moment_bound(5, L, MU) + noise_second_moment(5, q, MU, 0.3)
    scaled = second / kappa(5, q)
    close(norm_mismatch_bound(g, q, L, MU, 0.3), 2 * g.norm() * scaled**0.5 + scaled)
