"""What must not depend on coordinates, units or order."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from risegrad.theory import (
    average_curvature,
    blockwise_gap,
    blockwise_moments,
    damage_gap,
    damage_moments,
    expected_curvature,
    exposed_damage,
    fo_damage,
    isotropic_exposure,
    relative_reduction,
    shaping_scores,
    sign_certificate,
    spectral_equalization,
    worst_case_risk,
    zo_exposure,
)
from risegrad.theory.calibration import tau
from theory_reference import KINDS, close, curvature, gradient, normal, rotation

bounded = settings(derandomize=True, max_examples=60, deadline=None)
kinds = st.sampled_from(KINDS)
dims = st.integers(2, 24)
queries = st.integers(1, 64)
seeds = st.integers(0, 10**6)
scales = st.floats(1e-3, 1e3)


@given(kind=kinds, d=dims, q=queries, seed=seeds)
@bounded
def test_rotating_everything_changes_no_number(kind, d, q, seed):
    H, g, O = curvature(kind, d, seed), gradient(d, seed), rotation(d, seed + 1)  # noqa: E741
    turned, image = O @ H @ O.mT, O @ g
    turned = (turned + turned.mT) / 2
    close(damage_gap(turned, image, q), damage_gap(H, g, q), rtol=1e-6)
    close(damage_moments(turned, image, q).variance, damage_moments(H, g, q).variance)
    close(expected_curvature(turned, q), O @ expected_curvature(H, q) @ O.mT)
    close(zo_exposure(image, q), O @ zo_exposure(g, q) @ O.mT)


@given(kind=kinds, q=queries, seed=seeds)
@bounded
def test_rotating_inside_the_blocks_changes_no_number(kind, q, seed):
    sizes = [2, 3, 4]
    H, g = curvature(kind, 9, seed), gradient(9, seed)
    O = torch.block_diag(*(rotation(d, seed + d) for d in sizes))  # noqa: E741
    turned = O @ H @ O.mT
    turned = (turned + turned.mT) / 2
    close(blockwise_moments(turned, O @ g, sizes, q).mean, blockwise_moments(H, g, sizes, q).mean)
    found = blockwise_moments(turned, O @ g, sizes, q).variance
    close(found, blockwise_moments(H, g, sizes, q).variance)
    close(shaping_scores(turned, O @ g, sizes, q), shaping_scores(H, g, sizes, q), rtol=1e-6)


@given(kind=kinds, q=st.tuples(queries, queries), seed=seeds)
@bounded
def test_the_order_of_blocks_does_not_matter(kind, q, seed):
    H, g = curvature(kind, 7, seed), gradient(7, seed)
    swap = torch.tensor([3, 4, 5, 6, 0, 1, 2])
    one = blockwise_moments(H, g, [3, 4], q)
    other = blockwise_moments(H[swap][:, swap], g[swap], [4, 3], q[::-1])
    close(other.mean, one.mean, rtol=1e-8)
    close(other.variance, one.variance)


@given(kind=kinds, d=dims, q=queries, seed=seeds, c=scales)
@bounded
def test_units(kind, d, q, seed, c):
    H, g = curvature(kind, d, seed), gradient(d, seed)
    mean, variance = damage_moments(H, g, q)
    for scaled in (damage_moments(H, c * g, q), damage_moments(H, g, q, eta=c)):
        close(scaled.mean, c**2 * mean)
        close(scaled.variance, c**4 * variance)
    close(damage_moments(c * H, g, q).variance, c**2 * variance)
    close(damage_gap(H, g, q, eta=c), damage_gap(H, c * g, q))
    # A probability has no unit.
    probability = sign_certificate(H, g, q).probability
    close(sign_certificate(c * H, g, q, eta=3.0).probability, probability, rtol=1e-7)


@given(kind=kinds, d=dims, q=queries, seed=seeds)
@bounded
def test_trace_is_kept_and_deviations_shrink(kind, d, q, seed):
    H = curvature(kind, d, seed)
    shaped = expected_curvature(H, q)
    assert abs(torch.trace(shaped) - torch.trace(H)) <= 1e-12 * d * H.abs().max()
    values, level = torch.linalg.eigvalsh(H), average_curvature(H)
    found = spectral_equalization(values, q)
    close(found - level, (1 - tau(d, q)) * (values - level), rtol=1e-7)
    assert found.max() <= values.max() + 1e-12 * values.abs().max()
    assert found.min() >= values.min() - 1e-12 * values.abs().max()


@given(kind=kinds, d=dims, q=queries, seed=seeds)
@bounded
def test_the_gap_is_linear_in_the_curvature_and_blind_to_its_floor(kind, d, q, seed):
    H, other, g = curvature(kind, d, seed), curvature("psd", d, seed + 1), gradient(d, seed)
    total = damage_gap(H + 2 * other, g, q)
    size = float(fo_damage(other, g)) + float(fo_damage(H, g).abs())
    assert abs(total - damage_gap(H, g, q) - 2 * damage_gap(other, g, q)) <= 1e-12 * d * size
    shifted = damage_gap(H + 5 * torch.eye(d), g, q)
    assert abs(shifted - damage_gap(H, g, q)) <= 1e-12 * d * (size + 5 * float(g @ g))


@given(d=dims, q=queries, seed=seeds)
@bounded
def test_fewer_queries_mix_more(d, q, seed):
    H, g = curvature("psd", d, seed), gradient(d, seed)
    few, many = damage_gap(H, g, q), damage_gap(H, g, q + 1)
    assert torch.sign(few) == torch.sign(many)
    assert few.abs() > many.abs()
    assert relative_reduction(H, g, q) <= tau(d, q)
    assert worst_case_risk(zo_exposure(g, q), 1.0) < worst_case_risk(zo_exposure(g, q + 1), 1.0)


@given(kind=kinds, q=queries, seed=seeds)
@bounded
def test_variance_is_never_negative(kind, q, seed):
    H, g = curvature(kind, 9, seed), gradient(9, seed)
    assert damage_moments(H, g, q).variance >= 0
    assert blockwise_moments(H, g, [2, 3, 4], q).variance >= 0


@given(kind=kinds, d=dims, seed=seeds)
@bounded
def test_many_queries_are_fo(kind, d, seed):
    H, g, q = curvature(kind, d, seed), gradient(d, seed), 10**12
    size = float(H.abs().max() * (g @ g)) * d
    assert damage_gap(H, g, q).abs() < 1e-10 * size
    assert damage_moments(H, g, q).variance < 1e-9 * size**2
    assert blockwise_gap(H, g, [1, d - 1], q).abs() < 1e-10 * size


@given(d=dims, seed=seeds)
@bounded
def test_isotropic_exposure_sees_only_the_trace(d, seed):
    H, g = curvature("indefinite", d, seed), gradient(d, seed)
    found = exposed_damage(H, isotropic_exposure(g))
    assert abs(found - average_curvature(H) * (g @ g) / 2) <= 1e-12 * d * H.abs().max() * (g @ g)


def test_the_generators_cover_what_they_claim():
    low = torch.linalg.eigvalsh(curvature("low_rank", 16))
    assert (low < 1e-9).sum() == 12
    mixed = torch.linalg.eigvalsh(curvature("indefinite", 16))
    assert mixed[0] < 0 < mixed[-1]
    turned = curvature("rotated", 16)
    assert (turned - torch.diag(turned.diagonal())).abs().max() > 0.1
    assert torch.equal(normal(3, seed=1), normal(3, seed=1))
