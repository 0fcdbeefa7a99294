"""The realized gap, the paper's certificate and the one from the exact variance."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from risegrad.theory import (
    SmoothingRisk,
    blockwise_gap,
    blockwise_moments,
    blockwise_sign_certificate,
    bound_certificate,
    cantelli_certificate,
    damage_gap,
    damage_moments,
    deviation_bound,
    fo_damage,
    quadratic_damage,
    realized_gap,
    sign_certificate,
    smoothing_damage_bound,
    smoothing_damage_scale,
    two_point_estimate,
)
from risegrad.theory.calibration import kappa
from theory_reference import (
    KINDS,
    close,
    curvature,
    eye,
    generator,
    gradient,
    literal_blockwise,
    literal_shape,
    normal,
)


def smooth_loss(g):
    return lambda x: x @ g + 0.8 * torch.sin(x).sum(-1) - 0.8 * x.sum(-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "q"), [(2, 1), (7, 4), (40, 16)])
def test_accounting_is_exact_on_every_batch(kind, d, q):
    H, g, eta = curvature(kind, d), gradient(d), 0.6
    rows = normal(5, q, d, seed=70)
    estimate = two_point_estimate(smooth_loss(g), torch.zeros_like(g), rows, mu=0.5)
    found = realized_gap(H, g, rows, eta, estimate)
    x, x_hat = literal_shape(rows) @ g, kappa(d, q) ** -0.5 * estimate
    realized = fo_damage(H, g, eta) - quadratic_damage(H, -eta * x_hat)
    close(found.total, realized, rtol=1e-8)
    close(found.signal, damage_gap(H, g, q, eta))
    close(found.sampling, quadratic_damage(H, eta * x) - damage_moments(H, g, q, eta).mean, 1e-8)
    assert (found.smoothing != 0).all()
    exact = realized_gap(H, g, rows, eta)
    close(exact.total, fo_damage(H, g, eta) - quadratic_damage(H, -eta * x), rtol=1e-8)
    assert (exact.smoothing == 0).all()


def test_paper_certificate_adds_its_parts():
    H, g, q = curvature("psd", 6), gradient(6), 4
    found = bound_certificate(H, g, q, 0.1, 0.5, 3.0, SmoothingRisk(2.0, 0.01, 0.2))
    sampling = deviation_bound(H, g, q, 0.1, 0.5, 3.0)
    smoothing = smoothing_damage_scale(H, g, q, 2.0, 0.01, 0.5, 3.0)
    close(found.radius, sampling + smoothing / 0.2)
    close(found.signal, damage_gap(H, g, q, 0.5))
    assert math.isclose(found.probability, 0.7)
    exact = bound_certificate(H, g, q, 0.1, 0.5, 3.0)
    close(exact.radius, sampling)
    assert math.isclose(exact.probability, 0.9)


@pytest.mark.parametrize("q", [1, 8])
def test_paper_certificate_radius_holds_with_smoothing(q):
    d, mu, smoothness = 4, 0.2, 0.8  # the second derivative of the loss below is 0.8 |sin| <= 0.8
    H, g = curvature("psd", d), gradient(d)
    rows = torch.randn(4_000, q, d, generator=generator(71), dtype=torch.float64)
    estimate = two_point_estimate(smooth_loss(g), torch.zeros_like(g), rows, mu)
    off = (realized_gap(H, g, rows, 1.0, estimate).total - damage_gap(H, g, q)).abs()
    found = bound_certificate(H, g, q, 0.1, smoothing=SmoothingRisk(smoothness, mu, 0.1))
    assert (off > found.radius).double().mean() <= 1 - found.probability


@given(
    seed=st.integers(0, 10**6),
    d=st.integers(1, 12),
    q=st.integers(1, 64),
    delta=st.floats(1e-6, 0.99),
)
@settings(derandomize=True, max_examples=60, deadline=None)
def test_paper_certificate_never_certifies_for_a_constant_that_holds(seed, d, q, delta):
    # |G_q| <= (eta^2/2) tau |g|^2 lambda_max and tau < psi, so B_q > |G_q| for every C >= 1, and a
    # constant of 1 is already too small to hold. Try the gradient that makes G_q largest.
    H = curvature("low_rank", d, seed)
    g = torch.linalg.eigh(H).eigenvectors[:, -1]
    assert not bound_certificate(H, g, q, delta, constant=1.0).certified


def test_paper_certificate_would_certify_with_a_small_enough_constant():
    H, g = torch.diag(eye(64)[0]), eye(64)[0]
    found = bound_certificate(H, g, 4, 0.1, constant=1e-3)
    assert found.certified


CASES = [  # kind of H, d, q, whether g goes along the sharpest or the flattest eigenvector
    ("low_rank", 64, 1, -1),
    ("low_rank", 64, 4, -1),
    ("rotated", 32, 2, -1),
    ("psd", 16, 8, -1),
    ("rotated", 32, 4, 0),
    ("psd", 8, 1, 0),
]


@pytest.mark.parametrize(("kind", "d", "q", "which"), CASES)
def test_cantelli_certificate_holds(kind, d, q, which):
    H = curvature(kind, d)
    g = 1.7 * torch.linalg.eigh(H).eigenvectors[:, which]
    found = sign_certificate(H, g, q)
    assert (found.signal > 0) == (which == -1)
    rows = torch.randn(8_000, q, d, generator=generator(72), dtype=torch.float64)
    x = (rows.mT @ (rows @ g)[..., None]).squeeze(-1) / q / kappa(d, q) ** 0.5
    gaps = fo_damage(H, g) - quadratic_damage(H, x)
    agree = (torch.sign(gaps) == torch.sign(found.signal)).double().mean()
    assert found.probability <= agree


def test_cantelli_certificate_is_informative():
    # A sharp direction among many flat ones, the paper's own motivation, at its q = 4.
    H = curvature("rotated", 64)
    g = torch.linalg.eigh(H).eigenvectors[:, -1]
    found = sign_certificate(H, g, 4)
    assert 0.9 < found.probability < 1
    assert found.certified(0.1)
    assert not found.certified(0.001)
    rows = torch.randn(8_000, 4, 64, generator=generator(73), dtype=torch.float64)
    x = (rows.mT @ (rows @ g)[..., None]).squeeze(-1) / 4 / kappa(64, 4) ** 0.5
    fails = (quadratic_damage(H, x) >= fo_damage(H, g)).double().mean()
    assert fails <= 1 - found.probability


def test_cantelli_is_attained_by_a_two_point_law():
    # Values 0 and m + v/m have mean m and variance v; the low one comes with v/(v + m^2).
    mean, spread = torch.tensor(2.0), torch.tensor(3.0)
    low, high = 0.0, 2.0 + 3.0 / 2.0
    weight = (high - 2.0) / (high - low)
    assert math.isclose(weight * low + (1 - weight) * high, 2.0)
    assert math.isclose(weight * (low - 2) ** 2 + (1 - weight) * (high - 2) ** 2, 3.0)
    close(cantelli_certificate(mean, spread).probability, 1 - weight)


def test_cantelli_edges():
    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    assert cantelli_certificate(zero, one).probability == 0
    assert cantelli_certificate(zero, zero).probability == 0
    assert cantelli_certificate(one, zero).probability == 1
    assert cantelli_certificate(-3 * one, one).probability == pytest.approx(0.9)
    assert cantelli_certificate(one, one, slack=2.0).probability == 0
    assert cantelli_certificate(3 * one, 4 * one, 1.0, 0.1).probability == pytest.approx(0.4)


def test_certificate_with_smoothing_holds():
    d, q, mu, smoothness, failure = 16, 4, 1e-5, 0.8, 0.05
    H = curvature("rotated", d)
    g = torch.linalg.eigh(H).eigenvectors[:, -1]
    slack = smoothing_damage_bound(H, g, q, smoothness, mu) / failure
    moments = damage_moments(H, g, q)
    found = cantelli_certificate(damage_gap(H, g, q), moments.variance, slack, failure)
    assert 0.5 < found.probability < sign_certificate(H, g, q).probability
    rows = torch.randn(4_000, q, d, generator=generator(74), dtype=torch.float64)
    estimate = two_point_estimate(smooth_loss(g), torch.zeros_like(g), rows, mu)
    assert (realized_gap(H, g, rows, 1.0, estimate).total > 0).double().mean() >= found.probability


def test_blockwise_certificate_holds_and_is_informative():
    sizes, q = [16, 16, 32], [2, 4, 8]
    H = torch.block_diag(*(curvature("low_rank", d, seed=d) for d in sizes))
    H = H + 0.02 * curvature("indefinite", 64)
    g = torch.cat([torch.linalg.eigh(block).eigenvectors[:, -1] for block in
                   (H[:16, :16], H[16:32, 16:32], H[32:, 32:])])  # fmt: skip
    found = blockwise_sign_certificate(H, g, sizes, q)
    close(found.signal, blockwise_gap(H, g, sizes, q))
    close(found.variance, blockwise_moments(H, g, sizes, q).variance)
    assert found.probability > 0.8
    draws = generator(75)
    rows = [
        torch.randn(2_000, c, d, generator=draws, dtype=torch.float64)
        for c, d in zip(q, sizes, strict=True)
    ]
    gaps = fo_damage(H, g) - quadratic_damage(H, literal_blockwise(g, rows))
    assert (gaps > 0).double().mean() >= found.probability


def test_one_block_certificate_is_the_global_one():
    H, g = curvature("indefinite", 6), gradient(6)
    close(
        blockwise_sign_certificate(H, g, [6], 4).probability, sign_certificate(H, g, 4).probability
    )
