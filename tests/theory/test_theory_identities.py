"""Section 2, Lemma 3.2, Theorems 4.1 and 4.3: closed forms against literal Algorithm 1."""

import pytest
import torch

from risegrad.theory import (
    average_curvature,
    damage_gap,
    directional_curvature,
    expected_curvature,
    expected_damage,
    fo_damage,
    forgetting,
    full_information_gap,
    full_information_reference,
    gap_from_scalars,
    norm_matched_mean,
    norm_matched_shape,
    norm_matched_squared_norm,
    quadratic_damage,
    raw_expected_curvature,
    raw_mean,
    raw_shape,
    raw_squared_norm,
    relative_reduction,
    shaped_damage,
    spectral_equalization,
    taylor_remainder_bound,
)
from risegrad.theory.calibration import kappa, tau
from theory_reference import (
    CASES,
    KINDS,
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
    rotation,
    worst_z,
)

SMALL = [(1, 1), (2, 1), (2, 3), (3, 2), (4, 1)]


def log_cosh(x):
    return torch.log(torch.cosh(x)).sum(-1)


@pytest.mark.parametrize("size", [1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("centre", [0.0, 0.3])
def test_forgetting_is_quadratic_up_to_the_remainder(size, centre):
    # The Hessian of log cosh is 1 - tanh^2, whose derivative is below 4/(3 sqrt 3) everywhere.
    theta = torch.full((4,), centre, dtype=torch.float64)
    step = size * normal(4, seed=1)
    H = torch.diag(1 - torch.tanh(theta) ** 2)
    slope = float(torch.tanh(theta).norm())
    error = (forgetting(log_cosh, theta, step) - quadratic_damage(H, step)).abs()
    bound = taylor_remainder_bound(step, slope, 4 / 27**0.5)
    assert error <= bound
    if centre:
        assert error > bound / 20  # the gradient term is really there


def test_taylor_remainder_is_attained_by_a_cubic():
    cubic = lambda x: x[..., 0] ** 3  # noqa: E731
    step = torch.tensor([0.5], dtype=torch.float64)
    close(forgetting(cubic, torch.zeros(1), step), taylor_remainder_bound(step, 0.0, 6.0))


@pytest.mark.parametrize("kind", KINDS)
def test_damage_definitions_agree(kind):
    H, g = curvature(kind, 7), gradient(7)
    P = normal(7, 7, seed=2)
    close(shaped_damage(H, P, g, 0.3), 0.3**2 / 2 * (P @ g) @ H @ (P @ g))
    close(shaped_damage(H, torch.eye(7), g, 0.3), fo_damage(H, g, 0.3))
    close(fo_damage(H, g, 0.3), 0.3**2 / 2 * g @ g * directional_curvature(H, g))
    close(average_curvature(H), torch.linalg.eigvalsh(H).mean())


@pytest.mark.parametrize(("d", "q"), SMALL)
def test_shapes_are_those_of_algorithm_1(d, q):
    rows = normal(6, q, d, seed=3)
    close(norm_matched_shape(rows), literal_shape(rows))
    close(raw_shape(rows), kappa(d, q) ** 0.5 * literal_shape(rows))


@pytest.mark.parametrize(("d", "q"), SMALL)
def test_alignment_and_norm_matching_exactly(d, q):
    (rows,), weights = quadrature([q], [d])
    g = gradient(d)
    shaped = literal_shape(rows) @ g
    close(exact_mean(raw_shape(rows), weights), eye(d))
    close(exact_mean(raw_shape(rows) @ g, weights), raw_mean(g))
    close(exact_mean((raw_shape(rows) @ g).square().sum(-1), weights), raw_squared_norm(g, q))
    close(exact_mean(shaped, weights), norm_matched_mean(g, q))
    close(exact_mean(shaped.square().sum(-1), weights), norm_matched_squared_norm(g))


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_gaussian_fourth_moments(d):
    (rows,), weights = quadrature([1], [d])
    z, g, H = rows[:, 0], gradient(d), curvature("indefinite", d)
    norm_term = exact_mean(z.square().sum(-1) * (z @ g) ** 2, weights)
    close(norm_term, (d + 2) * g @ g)
    both = z[:, :, None] * ((z @ H) * z).sum(-1)[:, None, None] * z[:, None, :]
    close(exact_mean(both, weights), torch.trace(H) * eye(d) + 2 * H)


@pytest.mark.parametrize(("d", "q"), SMALL)
def test_expected_curvature_exactly(d, q):
    (rows,), weights = quadrature([q], [d])
    P, Z = literal_shape(rows), raw_shape(rows)
    for kind in KINDS:
        H = curvature(kind, d)
        close(exact_mean(P.mT @ H @ P, weights), expected_curvature(H, q))
        close(exact_mean(Z @ H @ Z, weights), raw_expected_curvature(H, q))


@pytest.mark.parametrize(("kind", "d", "q", "samples"), CASES)
def test_expected_curvature_by_monte_carlo(kind, d, q, samples):
    H = curvature(kind, d)

    def statistic(rows):
        P = literal_shape(rows)
        return P.mT @ H @ P

    found = monte_carlo(statistic, [q], [d], samples, seed=4)
    # d(d+1)/2 comparisons: 6 standard errors.
    assert worst_z(found, expected_curvature(H, q)) < 6


def test_monte_carlo_would_notice_a_wrong_weight():
    H = curvature("low_rank", 5)

    def statistic(rows):
        P = literal_shape(rows)
        return P.mT @ H @ P

    found = monte_carlo(statistic, [3], [5], 40_000, seed=4)
    wrong = 5 / (3 + 5)  # d/(q+d): the +1 of tau forgotten
    guess = (1 - wrong) * H + wrong * average_curvature(H) * eye(5)
    assert worst_z(found, guess) > 12


@pytest.mark.parametrize(("kind", "d", "q", "samples"), CASES)
def test_gap_and_calibration_by_monte_carlo(kind, d, q, samples):
    H, g = curvature(kind, d), gradient(d)

    def statistic(rows):
        x = literal_shape(rows) @ g
        gaps = fo_damage(H, g, 0.5) - quadratic_damage(H, -0.5 * x)
        return torch.cat([gaps[:, None], x.square().sum(-1, keepdim=True), x], dim=-1)

    found = monte_carlo(statistic, [q], [d], samples, seed=5)
    expected = torch.cat(
        [
            damage_gap(H, g, q, 0.5)[None],
            norm_matched_squared_norm(g)[None],
            norm_matched_mean(g, q),
        ]
    )
    assert worst_z(found, expected) < 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "q"), [(2, 1), (17, 4), (128, 64)])
def test_spectrum_contracts_and_keeps_its_vectors(kind, d, q):
    H = curvature(kind, d)
    values, vectors = torch.linalg.eigh(H)
    shaped = spectral_equalization(values, q)
    close((vectors * shaped) @ vectors.mT, expected_curvature(H, q))
    close(values - shaped, tau(d, q) * (values - values.mean()), rtol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_gap_is_the_projected_curvature_identity(kind):
    H, g, q, eta = curvature(kind, 33), gradient(33), 5, 0.7
    shaped = eta**2 / 2 * g @ expected_curvature(H, q) @ g
    close(expected_damage(H, g, q, eta), shaped)
    close(damage_gap(H, g, q, eta), fo_damage(H, g, eta) - shaped, rtol=1e-8)
    scalars = g @ H @ g, torch.trace(H), g @ g
    close(gap_from_scalars(*scalars, d=33, q=q, eta=eta), damage_gap(H, g, q, eta))


@pytest.mark.parametrize("kind", PSD)
def test_relative_reduction(kind):
    H, g, q = curvature(kind, 12), gradient(12), 3
    close(relative_reduction(H, g, q), damage_gap(H, g, q) / fo_damage(H, g))


def test_gap_takes_every_sign():
    H = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    signs = [torch.sign(damage_gap(H, g, 4)).item() for g in torch.eye(3, dtype=torch.float64)]
    assert signs == [-1, 0, 1]


def test_gap_from_scalars_takes_one_entry_per_block():
    matrices = [curvature("psd", d, seed=d) for d in (2, 5)]
    vectors = [gradient(d) for d in (2, 5)]
    scalars = [
        torch.stack(s)
        for s in zip(
            *((g @ H @ g, torch.trace(H), g @ g) for H, g in zip(matrices, vectors, strict=True)),
            strict=True,
        )
    ]
    found = gap_from_scalars(*scalars, d=torch.tensor([2, 5]), q=torch.tensor([3, 4]))
    both = [damage_gap(matrices[0], vectors[0], 3), damage_gap(matrices[1], vectors[1], 4)]
    close(found, torch.stack(both))


@pytest.mark.parametrize("kind", ["psd", "rotated"])
def test_full_information_reference_is_isotropic(kind):
    d, eta = 9, 0.4
    H, g, O = curvature(kind, d), gradient(d), rotation(d, 6)  # noqa: E741
    for P in (full_information_reference(H), full_information_reference(H, O)):
        close(P.mT @ H @ P, average_curvature(H) * eye(d), rtol=1e-7)
        close(
            fo_damage(H, g, eta) - shaped_damage(H, P, g, eta),
            full_information_gap(H, g, eta),
            rtol=1e-7,
        )


def test_batches_are_the_loop_over_them():
    H = torch.stack([curvature(kind, 6) for kind in KINDS])
    g = normal(4, 6, seed=7)
    for function in (damage_gap, expected_damage):
        close(function(H, g, 2), torch.stack([function(H[i], g[i], 2) for i in range(4)]))
    close(damage_gap(H[0], g, 2), torch.stack([damage_gap(H[0], row, 2) for row in g]))
    close(expected_curvature(H, 2)[3], expected_curvature(H[3], 2))
