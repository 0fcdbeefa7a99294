"""High-probability bounds (Propositions B.1 and C.2): never violated, and how loose they are."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from risegrad.theory import (
    PROVEN_CONSTANT,
    blockwise_deviation_bound,
    blockwise_moments,
    covariance_deviation_bound,
    damage_moments,
    deviation_bound,
    expected_curvature,
    explicit_deviation_bound,
    operator_fluctuation,
    psi,
    raw_shape,
)
from risegrad.theory.calibration import kappa, tau
from theory_reference import (
    KINDS,
    PSD,
    close,
    curvature,
    eye,
    generator,
    gradient,
    literal_blockwise,
    literal_shape,
    normal,
)


@given(d=st.integers(1, 4096), q=st.integers(1, 4096), delta=st.floats(1e-9, 0.999))
@settings(derandomize=True, max_examples=200, deadline=None)
def test_psi_and_the_proven_constant(d, q, delta):
    scale, e = psi(d, q, delta), covariance_deviation_bound(d, q, delta)
    total = d + math.log(1 / delta)
    assert math.isclose(scale, math.sqrt(total / q) + (total + 1) / q)
    # The two steps from the explicit bound to the constant, for every size.
    assert e <= 5.08 * scale
    assert 2 * e + e**2 + (d + 1) / q <= PROVEN_CONSTANT * (scale + scale**2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "q"), [(1, 2), (3, 1), (6, 20)])
def test_operator_fluctuation_is_the_exact_decomposition(kind, d, q):
    H, rows = curvature(kind, d), normal(7, q, d, seed=50)
    P, D = literal_shape(rows), raw_shape(rows) - eye(d)
    close(operator_fluctuation(H, rows), P.mT @ H @ P - expected_curvature(H, q), rtol=1e-8)
    close(P.mT @ H @ P, (H + D @ H + H @ D + D @ H @ D) / kappa(d, q))
    close(expected_curvature(H, q), (H + (H + torch.trace(H) * eye(d)) / q) / kappa(d, q))


@pytest.mark.parametrize("kind", PSD)
@pytest.mark.parametrize(("d", "q", "delta"), [(2, 1, 0.1), (12, 4, 0.05), (12, 256, 0.05)])
def test_global_bounds_hold_on_every_step_of_the_proof(kind, d, q, delta):
    H, g, samples = curvature(kind, d), gradient(d), 2_000
    rows = torch.randn(samples, q, d, generator=generator(51), dtype=torch.float64)
    D, fluctuation = raw_shape(rows) - eye(d), operator_fluctuation(H, rows)
    top, e = torch.linalg.eigvalsh(H)[-1], covariance_deviation_bound(d, q, delta)
    size = torch.linalg.matrix_norm(D, ord=2)
    good = size <= e
    assert (~good).double().mean() <= delta
    random = torch.linalg.matrix_norm(D @ H + H @ D + D @ H @ D, ord=2)
    assert (random <= (2 * size + size**2) * top * (1 + 1e-9)).all()
    centre = torch.linalg.matrix_norm((H + torch.trace(H) * eye(d)) / q, ord=2)
    assert centre <= (d + 1) / q * top * (1 + 1e-9)
    assert (d + 1) / q <= psi(d, q, delta)
    off = (fluctuation @ g @ g).abs() / 2
    assert (off <= g @ g / 2 * torch.linalg.matrix_norm(fluctuation, ord=2) * (1 + 1e-9)).all()
    explicit = explicit_deviation_bound(H, g, q, delta)
    assert (off[good] <= explicit).all()
    assert explicit <= deviation_bound(H, g, q, delta)


def test_explicit_bounds_are_within_a_small_factor_of_the_truth():
    # Many queries, a rank-one H and g along it: the damage is (S/q)^2/(2 kappa), S ~ chi2(q).
    d, q, delta = 2, 10_000, 0.05
    H, g = torch.diag(eye(2)[0]), eye(2)[0]
    S = np.random.default_rng(52).chisquare(q, 100_000)
    damage = (S / q) ** 2 / 2 / kappa(d, q)
    truth = np.quantile(np.abs(damage - float(damage_moments(H, g, q).mean)), 1 - delta)
    assert truth < float(explicit_deviation_bound(H, g, q, delta)) < 4 * truth
    rows = torch.randn(200, 2_000, 20, generator=generator(53), dtype=torch.float64)
    size = torch.linalg.matrix_norm(raw_shape(rows) - eye(20), ord=2).quantile(1 - delta)
    assert size < covariance_deviation_bound(20, 2_000, delta) < 2 * size


def test_a_constant_of_one_is_too_small():
    # Why C cannot be ignored: g along a rank-one H, many queries, delta = e^-10.
    d, q, delta = 2, 1_000_000, math.exp(-10)
    H, g = torch.diag(eye(2)[0]), eye(2)[0]
    S = np.random.default_rng(54).chisquare(q, 100_000)
    off = np.abs((S / q) ** 2 / 2 / kappa(d, q) - float(damage_moments(H, g, q).mean))
    assert np.mean(off > float(deviation_bound(H, g, q, delta, constant=1.0))) > 1000 * delta
    assert np.mean(off > float(deviation_bound(H, g, q, delta))) == 0


@given(d=st.integers(1, 10**6), q=st.integers(1, 10**6), delta=st.floats(1e-12, 0.999))
@settings(derandomize=True, max_examples=300, deadline=None)
def test_the_fluctuation_scale_always_exceeds_the_mixing_weight(d, q, delta):
    # So the bound exceeds every possible mean gap: the reason for an exact variance.
    assert tau(d, q) < psi(d, q, delta)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sizes", "q"), [([2, 3], [1, 4]), ([4, 4, 4, 4], [2, 2, 2, 2])])
def test_blockwise_bound_holds(kind, sizes, q):
    H, g, delta = curvature(kind, sum(sizes)), gradient(sum(sizes)), 0.05
    draws = generator(55)
    rows = [
        torch.randn(4_000, c, d, generator=draws, dtype=torch.float64)
        for c, d in zip(q, sizes, strict=True)
    ]
    x = literal_blockwise(g, rows)
    mean, variance = blockwise_moments(H, g, sizes, q, eta=0.5)
    off = (0.5**2 / 2 * ((x @ H) * x).sum(-1) - mean).abs()
    bound = blockwise_deviation_bound(H, g, sizes, q, delta, eta=0.5)
    assert (off > bound).double().mean() <= delta * len(sizes)
    # With C = 1 the bound is of the order of the scatter, not astronomically above it.
    assert blockwise_deviation_bound(H, g, sizes, q, delta, 0.5, 1.0) < 300 * variance.sqrt()


def test_blockwise_bound_of_one_block_is_the_global_bound():
    H, g = curvature("psd", 6), gradient(6)
    close(blockwise_deviation_bound(H, g, [6], 3, 0.1), deviation_bound(H, g, 3, 0.1))


def test_blockwise_bound_term_by_term():
    H, g = curvature("indefinite", 5), gradient(5)
    s = [psi(2, 1, 0.1), psi(3, 4, 0.2)]
    op = lambda block: torch.linalg.matrix_norm(block, ord=2)  # noqa: E731
    n = [g[:2].norm(), g[2:].norm()]
    within = n[0] ** 2 * op(H[:2, :2]) * (s[0] + s[0] ** 2)
    within = within + n[1] ** 2 * op(H[2:, 2:]) * (s[1] + s[1] ** 2)
    a = (kappa(2, 1) * kappa(3, 4)) ** -0.5
    between = a * n[0] * n[1] * op(H[:2, 2:]) * (s[0] + s[1] + s[0] * s[1])
    found = blockwise_deviation_bound(H, g, [2, 3], [1, 4], [0.1, 0.2], 0.5, 2.0)
    close(found, 2.0 * 0.5**2 * (within / 2 + between))


def test_the_cross_block_term_needs_the_constant_too():
    # The paper's display has no C there. Two one-dimensional blocks coupled only to each other,
    # many queries: the damage is a^2 (S_1/q)(S_2/q), and without C the bound fails too often.
    q, delta = 1_000_000, math.exp(-8)
    H = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    g = torch.ones(2, dtype=torch.float64)
    S = np.random.default_rng(56).chisquare(q, (2, 400_000)) / q
    mean = float(blockwise_moments(H, g, [1, 1], q).mean)
    off = np.abs(S.prod(0) / kappa(1, q) - mean)
    without = float(blockwise_deviation_bound(H, g, [1, 1], q, delta, constant=1.0))
    assert np.mean(off > without) > 2 * (2 * delta)
    assert np.mean(off > float(blockwise_deviation_bound(H, g, [1, 1], q, delta))) == 0
