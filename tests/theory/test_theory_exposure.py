"""Exposure, blind minimax, aligned benchmark (Theorem 4.4, Corollary 4.5, Theorem E.2)."""

import pytest
import torch

from risegrad.theory import (
    aligned_exposure,
    aligned_minimax_risk,
    blind_minimax_risk,
    excess_risk,
    expected_damage,
    exposed_damage,
    fo_damage,
    fo_exposure,
    isotropic_exposure,
    keeps_alignment,
    norm_matched_damage,
    worst_case_curvature,
    worst_case_risk,
    zo_exposure,
)
from risegrad.theory.calibration import mean_factor, tau
from theory_reference import (
    CASES,
    KINDS,
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


def random_moment(g, seed):
    """A second moment with the norm budget of g, anywhere between rank one and isotropic."""
    d = len(g)
    weights = normal(d, seed=seed).abs() ** (1 + seed % 4)
    basis = rotation(d, seed)
    return (g @ g) / weights.sum() * (basis * weights) @ basis.mT


@pytest.mark.parametrize(("d", "q"), [(1, 2), (2, 1), (2, 3), (3, 2)])
def test_zo_exposure_exactly(d, q):
    (rows,), weights = quadrature([q], [d])
    g = gradient(d)
    x = literal_shape(rows) @ g
    close(exact_mean(x[:, :, None] * x[:, None, :], weights), zo_exposure(g, q))


@pytest.mark.parametrize(("kind", "d", "q", "samples"), CASES[3:])
def test_zo_exposure_by_monte_carlo(kind, d, q, samples):
    g = gradient(d)

    def statistic(rows):
        x = literal_shape(rows) @ g
        return x[:, :, None] * x[:, None, :]

    assert worst_z(monte_carlo(statistic, [q], [d], samples, seed=20), zo_exposure(g, q)) < 6


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_the_trace_with_the_exposure(kind):
    H, g = curvature(kind, 15), gradient(15)
    close(exposed_damage(H, zo_exposure(g, 3), 0.2), expected_damage(H, g, 3, 0.2))
    close(exposed_damage(H, fo_exposure(g), 0.2), fo_damage(H, g, 0.2))
    for M in (fo_exposure(g), zo_exposure(g, 3), isotropic_exposure(g)):
        close(norm_matched_damage(H, M, g, 0.2), exposed_damage(H, M, 0.2))


@pytest.mark.parametrize("seed", range(8))
def test_no_curvature_of_the_class_beats_the_worst_case(seed):
    d, level, eta = 6, 0.7, 0.5
    M = random_moment(gradient(d), seed)
    risk = worst_case_risk(M, level, eta)
    worst = worst_case_curvature(M, level)
    close(exposed_damage(worst, M, eta), risk)
    close(torch.trace(worst), d * level)
    for trial in range(20):
        H = curvature("psd", d, seed=trial)
        H = H * (d * level / torch.trace(H))
        assert exposed_damage(H, M, eta) <= risk


@pytest.mark.parametrize("seed", range(8))
def test_only_the_isotropic_exposure_attains_the_blind_minimax(seed):
    g, level = gradient(6), 0.7
    best = blind_minimax_risk(g, level, 0.5)
    close(worst_case_risk(isotropic_exposure(g), level, 0.5), best)
    close(best, 0.5**2 / 2 * level * g @ g)
    # Uniqueness, at first order: any traceless change of M* raises the risk by its top eigenvalue.
    change = random_moment(g, seed) - isotropic_exposure(g)
    nearby = isotropic_exposure(g) + 1e-3 * change
    assert worst_case_risk(nearby, level, 0.5) > best * (1 + 1e-5)


@pytest.mark.parametrize(("d", "q"), [(2, 1), (10, 4), (64, 64), (128, 1)])
def test_zo_closes_a_tau_part_of_the_risk(d, q):
    g, level, eta = gradient(d), 1.3, 0.4
    M = zo_exposure(g, q)
    close(M, (1 - tau(d, q)) * fo_exposure(g) + tau(d, q) * isotropic_exposure(g))
    fo = excess_risk(fo_exposure(g), g, level, eta)
    close(excess_risk(M, g, level, eta), (1 - tau(d, q)) * fo)
    close(fo, eta**2 / 2 * d * level * g @ g * (1 - 1 / d))
    values = torch.linalg.eigvalsh(M) / (g @ g)
    close(values[-1], 1 - tau(d, q) + tau(d, q) / d)
    close(values[:-1], tau(d, q) / d)


@pytest.mark.parametrize("d", [2, 5, 30])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_aligned_optimum_is_feasible_and_attains_its_value(d, alpha):
    g = gradient(d)
    M = aligned_exposure(g, alpha)
    assert keeps_alignment(M, g, alpha)
    close(worst_case_risk(M, 0.8, 0.3), aligned_minimax_risk(g, alpha, 0.8, 0.3))
    close(
        aligned_minimax_risk(g, alpha, 0.8, 0.3),
        0.3**2 / 2 * d * 0.8 * (g @ g) * max(alpha**2, 1 / d),
    )


@pytest.mark.parametrize("alpha", [0.2, 0.6, 0.95])
@pytest.mark.parametrize("seed", range(6))
def test_no_feasible_exposure_beats_the_aligned_optimum(alpha, seed):
    g = gradient(5)
    rest = random_moment(g, seed)
    M = alpha**2 * fo_exposure(g) + (1 - alpha**2) * rest
    assert keeps_alignment(M, g, alpha)
    assert worst_case_risk(M, 1.0) >= aligned_minimax_risk(g, alpha, 1.0) * (1 - 1e-12)


def test_alignment_is_a_real_constraint():
    g = gradient(5)
    assert not keeps_alignment(isotropic_exposure(g), g, 0.9)
    assert not keeps_alignment(2 * isotropic_exposure(g), g, 0.0)


@pytest.mark.parametrize(("d", "q"), [(8, 2), (64, 4), (128, 32)])
def test_zo_pays_two_more_queries_than_the_aligned_optimum(d, q):
    # Not in the paper: at ZO's own mean a^2 = q/(q+d+1) > 1/d the best exposure has risk q where
    # ZO has q + 2, so ZO is close to aligned-optimal but for small q.
    g, a = gradient(d), mean_factor(d, q)
    assert keeps_alignment(zo_exposure(g, q), g, a)
    ratio = worst_case_risk(zo_exposure(g, q), 1.0) / aligned_minimax_risk(g, a, 1.0)
    close(ratio, (q + 2) / q)


def test_exposures_are_batched():
    g = normal(3, 4, seed=21)
    M = zo_exposure(g, 2)
    for i in range(3):
        close(M[i], zo_exposure(g[i], 2))
        close(worst_case_risk(M, 1.0)[i], worst_case_risk(M[i], 1.0))
    close(isotropic_exposure(g)[1], g[1] @ g[1] / 4 * eye(4))
