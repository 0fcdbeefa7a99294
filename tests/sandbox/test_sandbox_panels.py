"""The measurements of the panels: they agree with theory, and would notice if they did not."""

import pytest
import torch

from risegrad.common.seeds import generator_for
from riselab.sandbox import panels
from riselab.sandbox.panels import (
    COURSES,
    GapMeasurement,
    measure_batch,
    measure_exposure,
    measure_gap,
    measure_operator,
    measure_sweep,
    std_with_error,
    turning_gradients,
)
from riselab.sandbox.quadratics import (
    Quadratic,
    Spectrum,
    diagonal,
    even_gradient,
    leaning_gradient,
    rotated,
)

BOUND = 5  # standard errors
HARMONIC = Spectrum.parse("powerlaw:1")


@pytest.fixture(params=["diagonal", "rotated"])
def problem(request: pytest.FixtureRequest) -> Quadratic:
    if request.param == "diagonal":
        return diagonal(HARMONIC, 12)
    return rotated(HARMONIC, 12, generator_for(0, "rotation"))


def test_the_measured_curvature_is_the_closed_form(problem: Quadratic) -> None:
    m = measure_operator(problem, 3, 3200, 0, "test")
    # Every repetition is independent: their spread is the standard error of the mean of errors.
    assert m.eigenvalue_errors.shape == (panels.REPEATS,)
    assert (m.eigenvalue_errors < 0.12).all()
    assert abs(m.slopes.mean() + 0.5) < BOUND * m.slopes.std() / panels.REPEATS**0.5
    assert m.slopes.std() < 0.1
    wrong = (m.measured - m.eigenvalues).norm() / m.eigenvalues.norm()
    assert wrong > 0.3  # the closed form is far from doing nothing, so the agreement says something


def test_the_residual_has_the_size_that_one_sample_predicts() -> None:
    """``E|average - expected|^2 = E|one - expected|^2 / N``, so residual * sqrt(N) is constant."""
    problem = diagonal(HARMONIC, 6)
    m = measure_operator(problem, 2, 6400, 0, "test")
    scaled = m.residuals * torch.tensor(m.sizes, dtype=torch.float64).sqrt()
    rows = scaled.square().mean(0)
    spread = scaled.square().std(0) / panels.REPEATS**0.5
    assert (rows - rows[0]).abs().max() < BOUND * (spread[1:].max() + spread[0])


@pytest.mark.parametrize("samples", [640, 1001])
def test_the_top_rung_holds_every_sample(samples: int) -> None:
    m = measure_operator(diagonal(HARMONIC, 3), 1, samples, 0, "test")
    assert m.sizes[-1] == samples
    assert m.sizes[0] == samples // 64
    assert m.residuals[0, -1].item() == pytest.approx(
        ((m.average - m.expected).norm() / m.expected.norm()).item()
    )


def test_the_gap_follows_the_line_through_both_signs(problem: Quadratic) -> None:
    m = measure_gap(problem, 3, 4000, 0, "test")
    assert m.excess.min() < -0.1
    assert m.excess.abs().min() < 1e-12
    assert m.excess.max() > 1
    assert (m.measured - m.predicted).abs().le(BOUND * m.standard_error).all()
    assert 0.99 < m.r_squared < 1
    assert torch.equal(m.predicted > 1e-12, m.excess > 1e-12)


def test_r_squared_is_against_the_prediction_and_not_a_fit() -> None:
    x = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    twice = GapMeasurement(x, x, 2 * x, torch.ones_like(x))
    assert twice.r_squared == pytest.approx(1 - 5 / 8)


def test_turning_gradients_are_units_with_rising_curvature(problem: Quadratic) -> None:
    gradients = turning_gradients(problem)
    curvatures = torch.einsum("ni,ij,nj->n", gradients, problem.H, gradients)
    assert gradients.norm(dim=-1).tolist() == pytest.approx([1] * len(gradients))
    assert (curvatures.diff() > 0).all()


@pytest.mark.parametrize("sampler", ["one-draw", "directions"])
@pytest.mark.parametrize("block", [4, 12])
def test_the_measured_deviation_is_the_exact_one(
    problem: Quadratic, block: int, sampler: str
) -> None:
    g = even_gradient(12, generator_for(0, "g"))
    draws = generator_for(0, f"{block}{sampler}")
    found = measure_batch(sampler, problem, g, 4, block, 20_000, draws, sampler)  # type: ignore[arg-type]
    for value, error, exact in (found.signal, found.deviation):
        assert abs(value - exact) < BOUND * error
    assert found.deviation.error < 0.05 * found.deviation.exact


def test_the_standard_error_of_a_deviation_is_the_one_of_the_normal_law() -> None:
    values = torch.randn(100_000, generator=generator_for(0, "n"), dtype=torch.float64)
    std, error = std_with_error(values)
    assert std == pytest.approx(1, abs=0.02)
    assert error == pytest.approx((1 / 2 / 100_000) ** 0.5, rel=0.05)


def test_exposure_closes_the_fraction_tau_of_the_way() -> None:
    m = measure_exposure(16, [1, 4, 32], 40_000, 0)
    assert m.fo.along == pytest.approx(1)
    assert m.fo.risk == pytest.approx(8)
    assert m.isotropic.risk == pytest.approx(0.5)
    for point in m.zo:
        assert point.tau == pytest.approx(16 / (point.q + 17))
        # The risk is the top eigenvalue of a sample covariance: biased up by a few of its errors.
        closed = (m.fo.risk - point.measured.risk) / (m.fo.risk - m.isotropic.risk)
        assert closed == pytest.approx(point.tau, abs=0.02)
        assert point.measured.along == pytest.approx(point.exact.along, rel=0.06)
        assert point.measured.across == pytest.approx(point.exact.across, rel=0.03)


def test_the_leaning_gradient_has_twice_the_average_curvature(problem: Quadratic) -> None:
    g = leaning_gradient(problem, generator_for(0, "g"))
    assert g.norm().item() == pytest.approx(1)
    assert (g @ problem.H @ g).item() == pytest.approx(min(2, problem.eigenvalues.square().mean()))
    wide = rotated(HARMONIC, 48, generator_for(0, "wide"))
    g = leaning_gradient(wide, generator_for(0, "g"))
    assert (g @ wide.H @ g).item() == pytest.approx(2)


def test_the_measured_signal_and_deviation_are_the_exact_ones() -> None:
    points = measure_sweep(HARMONIC, 32, 3, 6000, 0)
    assert {point.kind for point in points} == set(COURSES)
    for point in points:
        for value, error, exact in (point.signal, point.deviation):
            assert abs(value - exact) < BOUND * error, point


def test_the_signal_of_one_block_is_the_papers() -> None:
    """``G_q = tau |g|^2 (lam_dir - lam_avg) / 2``, with a curvature of 2 over an average of 1."""
    for point in measure_sweep(HARMONIC, 64, 3, 640, 0):
        if point.block == point.d and point.d > 8:
            assert point.signal.exact == pytest.approx(point.d / (point.q + point.d + 1) / 2)


def test_blocks_help_where_they_cut_through_the_eigenvectors() -> None:
    """What docs/sandbox.md says of figure 6: on the axes they cost signal and add deviation."""
    found = {(p.kind, p.block): p for p in measure_sweep(HARMONIC, 64, 1, 640, 0) if p.q == 1}
    whole, along, across = (
        found[name, size] for name, size in (("blocks", 64), ("blocks", 8), ("rotated blocks", 8))
    )
    assert along.signal.exact < 0.5 * whole.signal.exact
    assert along.deviation.exact > whole.deviation.exact
    assert across.signal.exact > 0.8 * whole.signal.exact
    assert across.deviation.exact < 0.7 * whole.deviation.exact


def test_dimensions_that_a_spectrum_does_not_have_are_left_out() -> None:
    points = measure_sweep(Spectrum.parse("spiked:5,20"), 32, 1, 640, 0)
    assert {point.d for point in points if point.kind == "dimensions"} == {8, 16, 32}
