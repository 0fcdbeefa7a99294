"""The draws: both samplers against exact moments, and bounded memory."""

import pytest
import torch

from risegrad.common.seeds import generator_for
from risegrad.core.shapers import SAMPLERS, Sampler
from risegrad.theory import blockwise_covariances, norm_matched_shape, zo_exposure
from risegrad.theory.calibration import mean_factor
from riselab.sandbox import quadratics
from riselab.sandbox.quadratics import (
    Spectrum,
    chunks,
    damages,
    even_gradient,
    operator_sum,
    rotated,
    second_moment,
    shaped,
)

BOUND = 5  # standard errors


def test_generators_depend_on_seed_and_purpose_and_on_nothing_else() -> None:
    def first(seed: int, purpose: str) -> float:
        return torch.rand(1, generator=generator_for(seed, purpose)).item()

    assert first(0, "a") == first(0, "a")
    assert len({first(0, "a"), first(0, "b"), first(1, "a")}) == 3


@pytest.mark.parametrize("samples", [1, 7, 24_000])
@pytest.mark.parametrize("numbers", [3, 1 << 17, 1 << 25])
def test_chunks_add_up_and_stay_within_the_budget(samples: int, numbers: int) -> None:
    sizes = list(chunks(samples, numbers))
    assert sum(sizes) == samples
    # A single sample above the budget is the least that can be drawn.
    assert max(sizes) * numbers <= max(quadratics.CHUNK_NUMBERS, numbers)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("block", [None, 4])
def test_shaped_gradients_have_the_exact_mean_and_covariance(
    sampler: Sampler, block: int | None
) -> None:
    d, q, samples = 12, 3, 40_000
    g = torch.linspace(-1, 2, d, dtype=torch.float64)
    x = shaped(g, q, samples, generator_for(0, f"{sampler}{block}"), block=block, sampler=sampler)
    size = block or d
    covariances = blockwise_covariances(g, [size] * (d // size), q)
    exact = torch.block_diag(*covariances)  # type: ignore[no-untyped-call]
    error = (x.mean(0) - mean_factor(size, q) * g) / (exact.diagonal() / samples).sqrt()
    assert error.abs().max() < BOUND
    centered = x - mean_factor(size, q) * g
    products = centered[:, :, None] * centered[:, None, :]
    error = (products.mean(0) - exact) / (products.std(0) / samples**0.5)
    assert error.abs().max() < BOUND


def test_each_row_of_a_batch_is_shaped_by_its_own_gradient() -> None:
    g = torch.stack([torch.zeros(6), torch.ones(6)]).to(torch.float64)
    x = shaped(g, 2, 2, generator_for(0, "rows"), block=3)
    assert torch.equal(x[0], torch.zeros(6, dtype=torch.float64))
    assert (x[1] != 0).all()


def test_the_operator_sum_is_the_sum_of_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = rotated(Spectrum.parse("powerlaw:1"), 6, generator_for(0, "operator"))
    monkeypatch.setattr(quadratics, "CHUNK_NUMBERS", 8 * 3 * 6)
    found = operator_sum(problem.H, 3, 16, generator_for(0, "sum"))
    draws = generator_for(0, "sum")
    D = torch.cat([quadratics.normals(draws, 8, 3, 6) for _ in range(2)])
    P = norm_matched_shape(D)
    torch.testing.assert_close(found, (P.mT @ problem.H @ P).sum(0), atol=1e-12, rtol=1e-12)


def test_the_second_moment_is_the_exact_exposure() -> None:
    g, samples = even_gradient(8, generator_for(0, "g")), 40_000
    found = second_moment(g, 2, samples, generator_for(0, "one-draw"))
    x = shaped(g, 2, samples, generator_for(1, "one-draw"))
    errors = (x[:, :, None] * x[:, None, :]).std(0) / samples**0.5
    assert ((found - zo_exposure(g, 2)) / errors).abs().max() < BOUND


def test_damages_are_half_the_quadratic_form_of_the_draws() -> None:
    problem = rotated(Spectrum.parse("powerlaw:1"), 6, generator_for(0, "damage"))
    g = even_gradient(6, generator_for(0, "g"))
    found = damages(problem.H, g, 2, 5, generator_for(0, "x"), block=3)
    x = shaped(g, 2, 5, generator_for(0, "x"), block=3)
    torch.testing.assert_close(found, torch.einsum("ni,ij,nj->n", x, problem.H, x) / 2)


def test_one_thread_is_undone_also_after_an_error() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), quadratics.one_thread():
            during = torch.get_num_threads() / 0
        with quadratics.one_thread():
            during = torch.get_num_threads()
        assert (during, torch.get_num_threads()) == (1, 2)
    finally:
        torch.set_num_threads(before)
