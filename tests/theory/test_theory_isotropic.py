"""The general isotropic-moment lemma (Lemma E.1), for our shape and for others."""

import pytest
import torch

from risegrad.theory import (
    average_curvature,
    estimate_isotropic_moments,
    expected_curvature,
    isotropic_curvature,
    norm_matched_moments,
    norm_matched_sampler,
    shape_moments,
)
from theory_reference import close, curvature, exact_mean, eye, generator, literal_shape, quadrature


def gaussian_sampler(d, draws):
    """Not symmetric: E[P'HP] = (tr H/d) I, so alpha = 0 and rho = 1."""
    return lambda n: torch.randn(n, d, d, generator=draws, dtype=torch.float64) / d**0.5


def rotation_sampler(d, draws):
    def draw(n):
        Q, R = torch.linalg.qr(torch.randn(n, d, d, generator=draws, dtype=torch.float64))
        return Q * torch.sign(R.diagonal(dim1=-2, dim2=-1))[:, None, :]

    return draw


def projection_sampler(d, k, draws):
    def draw(n):
        Q = torch.linalg.qr(torch.randn(n, d, k, generator=draws, dtype=torch.float64)).Q
        return (d / k) ** 0.5 * Q @ Q.mT

    return draw


@pytest.mark.parametrize(("d", "q"), [(2, 1), (8, 4), (40, 16)])
def test_ours_is_recovered(d, q):
    found = estimate_isotropic_moments(norm_matched_sampler(d, q, generator(90)), 4_000)
    closed = norm_matched_moments(d, q)
    assert abs(found.alpha - closed.alpha) < 5 * found.alpha_se
    assert abs(found.rho - closed.rho) < 5 * found.rho_se
    assert found.alpha_se < 0.05


@pytest.mark.parametrize(("d", "q"), [(2, 1), (2, 3), (3, 2)])
def test_the_estimator_is_unbiased_exactly(d, q):
    (rows,), weights = quadrature([q], [d])
    alpha, rho = shape_moments(literal_shape(rows))
    closed = norm_matched_moments(d, q)
    close(exact_mean(alpha, weights), closed.alpha)
    close(exact_mean(rho, weights), closed.rho)


@pytest.mark.parametrize(("d", "q"), [(2, 1), (30, 7)])
def test_closed_form_is_the_expected_curvature(d, q):
    H, closed = curvature("indefinite", d), norm_matched_moments(d, q)
    close(isotropic_curvature(H, closed.alpha, closed.rho), expected_curvature(H, q))
    traceless = H - average_curvature(H) * eye(d)
    whole = (closed.alpha + closed.rho) * average_curvature(H) * eye(d) + closed.alpha * traceless
    close(isotropic_curvature(H, closed.alpha, closed.rho), whole)


def test_a_gaussian_matrix_forgets_the_curvature():
    found = estimate_isotropic_moments(gaussian_sampler(6, generator(91)), 8_000)
    assert abs(found.alpha) < 5 * found.alpha_se < 0.1
    assert abs(found.rho - 1) < 5 * found.rho_se < 0.1


def test_the_identity_keeps_it():
    found = estimate_isotropic_moments(lambda n: eye(5).expand(n, 5, 5), 10)
    assert found.alpha == pytest.approx(1)
    assert found.rho == pytest.approx(0, abs=1e-12)
    assert found.alpha_se == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("law", ["gaussian", "rotation", "projection", "ours"])
@pytest.mark.parametrize("kind", ["indefinite", "low_rank"])
def test_two_numbers_say_it_all(law, kind):
    d, samples, draws = 4, 20_000, generator(92)
    sampler = {
        "gaussian": gaussian_sampler(d, draws),
        "rotation": rotation_sampler(d, draws),
        "projection": projection_sampler(d, 2, draws),
        "ours": norm_matched_sampler(d, 2, draws),
    }[law]
    H, found = curvature(kind, d), estimate_isotropic_moments(sampler, samples)
    P = sampler(samples)
    mapped = P.mT @ H @ P
    error = mapped.std(0) / samples**0.5
    # The prediction has an error of its own, of the same size: 7 standard errors of the mean.
    worst = ((mapped.mean(0) - isotropic_curvature(H, found.alpha, found.rho)).abs() / error).max()
    assert worst < 7


def test_the_standard_errors_mean_what_they_say():
    closed, draws = norm_matched_moments(3, 2), generator(93)
    found = [estimate_isotropic_moments(norm_matched_sampler(3, 2, draws), 400) for _ in range(200)]
    z = torch.tensor([(f.rho - closed.rho) / f.rho_se for f in found])
    assert 0.8 < z.std() < 1.2


def test_chunks_do_not_matter():
    shapes = norm_matched_sampler(3, 2, generator(94))(700)

    def replay():
        rows = iter(shapes)
        return lambda n: torch.stack([next(rows) for _ in range(n)])

    whole = estimate_isotropic_moments(replay(), 700, chunk=700)
    parts = estimate_isotropic_moments(replay(), 700, chunk=8)
    assert parts.alpha == pytest.approx(whole.alpha, rel=1e-12)
    assert parts.rho_se == pytest.approx(whole.rho_se, rel=1e-12)
