"""The exact variance of the one-batch damage, and the moments it is made of."""

import pytest
import torch

from risegrad.theory import (
    chi_square_moment,
    damage_moments,
    damage_moments_from_scalars,
    deviation_bound,
    expected_damage,
    quadratic_linear_covariance,
    shape_covariance,
    third_moment,
)
from theory_reference import (
    CASES,
    KINDS,
    PSD,
    close,
    curvature,
    exact_mean,
    gradient,
    literal_damages,
    literal_shape,
    monte_carlo,
    normal,
    quadrature,
    worst_z,
)

SMALL = [(1, 1), (1, 3), (2, 1), (2, 3), (3, 2), (4, 1)]


@pytest.mark.parametrize(("d", "q"), SMALL)
def test_variance_exactly(d, q):
    # Degree 8 in the directions: five nodes per coordinate integrate it without error.
    (rows,), weights = quadrature([q], [d])
    for kind in KINDS:
        H, g = curvature(kind, d), gradient(d)
        damage = literal_damages(H, g, [rows], eta=0.6)
        mean = exact_mean(damage, weights)
        moments = damage_moments(H, g, q, eta=0.6)
        close(moments.mean, mean)
        close(moments.variance, exact_mean((damage - mean) ** 2, weights))


@pytest.mark.parametrize(("kind", "d", "q", "samples"), CASES)
def test_variance_by_monte_carlo(kind, d, q, samples):
    H, g = curvature(kind, d), gradient(d)
    mean, variance = damage_moments(H, g, q)
    centre = lambda rows: literal_damages(H, g, [rows]) - mean  # noqa: E731
    found = monte_carlo(
        lambda rows: torch.stack([centre(rows), centre(rows) ** 2], dim=-1), [q], [d], samples, 8
    )
    assert worst_z(found, torch.stack([torch.zeros_like(mean), variance])) < 5
    assert found.error[1] < 0.25 * variance  # or the line above would prove little


@pytest.mark.parametrize("kind", KINDS)
def test_scalars_are_the_whole_story(kind):
    d, q = 40, 6
    H, g = curvature(kind, d), gradient(d)
    scalars = g @ H @ g, (H @ g) @ (H @ g), torch.trace(H), torch.trace(H @ H), g @ g
    dense = damage_moments(H, g, q, eta=0.3)
    few = damage_moments_from_scalars(*scalars, d=d, q=q, eta=0.3)
    close(few.mean, dense.mean)
    close(few.variance, dense.variance)
    close(dense.mean, expected_damage(H, g, q, 0.3))
    close(dense.std**2, dense.variance)


def test_scalars_take_one_entry_per_block():
    blocks = [(curvature("psd", d, seed=d), gradient(d), d, q) for d, q in ((2, 1), (7, 4))]
    rows = [
        (g @ H @ g, (H @ g) @ (H @ g), torch.trace(H), torch.trace(H @ H), g @ g)
        for H, g, _, _ in blocks
    ]
    columns = [torch.stack(column) for column in zip(*rows, strict=True)]
    found = damage_moments_from_scalars(*columns, d=torch.tensor([2, 7]), q=torch.tensor([1, 4]))
    for i, (H, g, _, q) in enumerate(blocks):
        close(found.mean[i], damage_moments(H, g, q).mean)
        close(found.variance[i], damage_moments(H, g, q).variance)


def test_variance_is_the_second_moment_of_the_notes_less_the_squared_mean():
    d, q = 23, 9
    H, g = curvature("indefinite", d), gradient(d)
    u, g2 = g / g.norm(), g @ g
    lam, hu2 = u @ H @ u, (H @ u) @ (H @ u)
    t1, t2 = torch.trace(H) - lam, torch.trace(H @ H) - 2 * hu2 + lam**2
    s1, s2, s3, s4 = (chi_square_moment(q, k) for k in (1, 2, 3, 4))
    c = g2 / (q * (q + d + 1))
    mean = c * (s2 * lam + s1 * t1)
    second = s4 * lam**2 + 4 * s3 * (hu2 - lam**2) + 2 * s3 * lam * t1 + s2 * (t1**2 + 2 * t2)
    moments = damage_moments(H, g, q)
    close(2 * moments.mean, mean)
    close(4 * moments.variance, c**2 * second - mean**2, rtol=1e-8)


@pytest.mark.parametrize("q", [1, 2, 5])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_chi_square_moments(q, order):
    (rows,), weights = quadrature([q], [1])
    close(exact_mean(rows.square().sum((-2, -1)) ** order, weights), chi_square_moment(q, order))


@pytest.mark.parametrize(("d", "q"), SMALL)
def test_third_moment_and_covariance_exactly(d, q):
    (rows,), weights = quadrature([q], [d])
    g, r = gradient(d), normal(d, seed=9)
    x = literal_shape(rows) @ g
    for kind in KINDS:
        H = curvature(kind, d)
        form, line = ((x @ H) * x).sum(-1), x @ r
        both = exact_mean(form * line, weights)
        close(third_moment(H, g, r, q), both)
        product = exact_mean(form, weights) * exact_mean(line, weights)
        close(quadratic_linear_covariance(H, g, r, q), both - product, 1e-8)


@pytest.mark.parametrize(("kind", "d", "q", "samples"), CASES[2:7])
def test_third_moment_by_monte_carlo(kind, d, q, samples):
    H, g, r = curvature(kind, d), gradient(d), normal(d, seed=9)

    def statistic(rows):
        x = literal_shape(rows) @ g
        return ((x @ H) * x).sum(-1) * (x @ r)

    assert worst_z(monte_carlo(statistic, [q], [d], samples, 10), third_moment(H, g, r, q)) < 5


@pytest.mark.parametrize(("d", "q"), SMALL)
def test_shape_covariance_exactly(d, q):
    (rows,), weights = quadrature([q], [d])
    g = gradient(d)
    x = literal_shape(rows) @ g
    centred = x - exact_mean(x, weights)
    close(exact_mean(centred[:, :, None] * centred[:, None, :], weights), shape_covariance(g, q))


def test_zero_gradient_has_no_damage_and_no_variance():
    mean, variance = damage_moments(curvature("indefinite", 5), torch.zeros(5), 2)
    assert mean == 0
    assert variance == 0


def test_variance_keeps_its_digits_at_many_queries():
    # For g an eigenvector of a rank-one H the damage is c S^2/2 with S chi-square: a short formula.
    d, q = 3, 10**7
    H, g = torch.diag(torch.tensor([1.0, 0, 0], dtype=torch.float64)), torch.eye(3)[0]
    exact = 8 * (q + 2) * (q + 3) / (4 * q * (q + d + 1) ** 2)
    close(damage_moments(H, g, q).variance, exact, rtol=1e-12)


@pytest.mark.parametrize("kind", PSD)
def test_variance_is_far_below_the_paper_s_bound(kind):
    # At the failure probability 1/2 a standard deviation and a proven deviation bound should be of
    # one order if the bound were tight; the exact number is what makes it usable.
    H, g = curvature(kind, 64), gradient(64)
    assert 20 * damage_moments(H, g, 4).std < deviation_bound(H, g, 4, 0.5)
