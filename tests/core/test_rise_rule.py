"""The rule: the one-draw sampler has the law of Algorithm 1."""

import pytest
import torch
from scipy.stats import ks_2samp

from references import (
    STANDARD_ERRORS,
    algorithm_1,
    assert_close,
    standard_scores,
    two_sample_scores,
)
from risegrad.core.shapers import (
    BlockDraws,
    CovarianceNoise,
    covariance_noise,
    from_directions,
    one_draw,
    shape,
)
from risegrad.theory.calibration import kappa, mean_factor, tau

SAMPLES = 40_000
CASES = [(2, 1), (3, 4), (6, 2), (5, 64)]


def gradient(d):
    return torch.linspace(-1.0, 2.0, d, dtype=torch.float64)


def curvature(d):
    """Fixed, symmetric, indefinite and not diagonal."""
    root = torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    return root + root.T


def sample_one_draw(d, q, seed):
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(SAMPLES, d, dtype=torch.float64, generator=generator)
    chi2 = torch.randn(SAMPLES, q, dtype=torch.float64, generator=generator).square().sum(-1)
    return one_draw(gradient(d), normal, chi2, q)


def sample_directions(d, q, seed):
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(SAMPLES, q, d, dtype=torch.float64, generator=generator)
    return from_directions(gradient(d), directions)


def sample_covariance_noise(d, q, seed):
    """The same mean and covariance as RISE, another law: what the tests below must notice."""
    g = gradient(d)
    generator = torch.Generator().manual_seed(seed)
    n = torch.randn(SAMPLES, d, dtype=torch.float64, generator=generator)
    along = torch.randn(SAMPLES, dtype=torch.float64, generator=generator)
    return covariance_noise(g, along, n, q)


def third_moments(x):
    return torch.einsum("ni,nj,nk->nijk", x, x, x).flatten(1)


def damage(x):
    return torch.einsum("ni,ij,nj->n", x, curvature(x.shape[1]), x)


@pytest.mark.parametrize(("d", "q"), [(1, 1), (3, 1), (4, 7)])
def test_from_directions_is_algorithm_1(d, q):
    generator = torch.Generator().manual_seed(1)
    directions = torch.randn(5, q, d, dtype=torch.float64, generator=generator)
    g = torch.randn(5, d, dtype=torch.float64, generator=generator)
    expected = torch.stack([algorithm_1(*pair) for pair in zip(g, directions, strict=True)])
    assert_close(from_directions(g, directions), expected)


@pytest.mark.parametrize("sample", [sample_one_draw, sample_directions, sample_covariance_noise])
@pytest.mark.parametrize(("d", "q"), CASES)
def test_mean_and_second_moment_are_the_papers(sample, d, q):
    g, x = gradient(d), sample(d, q, seed=2)
    assert standard_scores(x, mean_factor(d, q) * g).max() < STANDARD_ERRORS
    mixing = tau(d, q)
    second = (1 - mixing) * torch.outer(g, g) + mixing * g.square().sum() / d * torch.eye(
        d, dtype=torch.float64
    )
    assert standard_scores(torch.einsum("ni,nj->nij", x, x), second).max() < STANDARD_ERRORS
    assert standard_scores(x.square().sum(1), g.square().sum()) < STANDARD_ERRORS


@pytest.mark.parametrize(("d", "q"), CASES)
def test_two_samplers_agree_in_third_moments_and_damage(d, q):
    ours, literal = sample_one_draw(d, q, seed=3), sample_directions(d, q, seed=4)
    scores = two_sample_scores(third_moments(ours), third_moments(literal))
    assert scores.max() < STANDARD_ERRORS
    assert ks_2samp(damage(ours).numpy(), damage(literal).numpy()).pvalue > 1e-3


@pytest.mark.parametrize(("d", "q"), CASES)
def test_covariance_noise_is_what_its_shaper_does(d, q):
    """The law stands once as a function and once as coefficients."""
    g = gradient(d)
    along, *across = torch.randn(
        d + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    across = torch.stack(across)
    one = torch.ones((), dtype=torch.float64)
    draws = BlockDraws(norm=g.norm(), dot=g @ across, chi2=one, normal=along, d=d * one, q=q * one)
    on_gradient, on_noise = CovarianceNoise(q=q).coefficients(draws)
    assert_close(covariance_noise(g, along, across, q), on_gradient * g + on_noise * across)


def test_the_comparison_notices_a_law_with_the_same_covariance():
    d, q = 3, 4
    literal, other = sample_directions(d, q, seed=4), sample_covariance_noise(d, q, seed=5)
    assert two_sample_scores(literal, other).max() < STANDARD_ERRORS
    assert two_sample_scores(third_moments(literal), third_moments(other)).max() > 10
    assert ks_2samp(damage(literal).numpy(), damage(other).numpy()).pvalue < 1e-6


@pytest.mark.parametrize("sampler", ["one-draw", "directions"])
def test_shape_is_pure_and_reproducible(sampler):
    g = gradient(7).float().view(7, 1)
    before, state = g.clone(), torch.get_rng_state()
    first, second = (
        shape(g, q=3, generator=torch.Generator().manual_seed(6), sampler=sampler) for _ in range(2)
    )
    assert torch.equal(first, second)
    assert torch.equal(g, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.shape == g.shape
    assert first.dtype == g.dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_shape_rounds_only_at_the_end(dtype):
    g = torch.randn(5000, generator=torch.Generator().manual_seed(7)).to(dtype)
    low = shape(g, q=2, generator=torch.Generator().manual_seed(8))
    high = shape(g.float(), q=2, generator=torch.Generator().manual_seed(8))
    assert low.dtype == dtype
    assert_close(low, high, dtype)


def test_zero_stays_zero_and_nonfinite_is_not_hidden():
    generator = torch.Generator().manual_seed(9)
    assert torch.equal(shape(torch.zeros(4), generator=generator), torch.zeros(4))
    for bad in (float("nan"), float("inf")):
        assert not shape(torch.tensor([1.0, bad, 2.0]), generator=generator).isfinite().any()


def test_calibration_scalars():
    assert kappa(5, 2) == 4.0
    assert tau(5, 2) == 0.625
    assert mean_factor(5, 2) == 0.5
    blocks = torch.tensor([5.0, 13.0])
    assert torch.equal(mean_factor(blocks, torch.tensor([2.0, 2.0])), blocks.add(3).div(2) ** -0.5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"q": 0}, ValueError, "q must be an integer >= 1, got 0"),
        ({"q": 2.0}, TypeError, r"q must be an integer >= 1, got 2.0 \(float\)"),
        ({"q": True}, TypeError, r"q must be an integer >= 1, got True \(bool\)"),
        (
            {"sampler": "fast"},
            ValueError,
            "sampler must be one of one-draw, directions; got 'fast'",
        ),
        ({"g": torch.ones(0)}, ValueError, r"at least one element, got shape \(0,\)"),
        ({"g": torch.ones(2, dtype=torch.int64)}, TypeError, "real floating-point .* torch.int64"),
    ],
)
def test_bad_input(arguments, error, message):
    with pytest.raises(error, match=message):
        shape(**({"g": torch.ones(3)} | arguments))
