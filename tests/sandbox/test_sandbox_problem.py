"""Spectra, quadratics and settings: what is studied, and what is refused."""

import pytest
import torch

from risegrad.common.seeds import generator_for
from riselab.sandbox.quadratics import Spectrum, diagonal, even_gradient, random_rotation, rotated
from riselab.sandbox.run import SandboxSettings

SPECTRA = ["powerlaw:1", "powerlaw:0.3", "spiked:2,20"]


@pytest.mark.parametrize("text", SPECTRA)
@pytest.mark.parametrize("d", [3, 64])
def test_every_spectrum_is_sorted_nonnegative_and_averages_one(text: str, d: int) -> None:
    values = Spectrum.parse(text).values(d)
    assert values.dtype == torch.float64
    assert len(values) == d
    assert values.mean().item() == pytest.approx(1, rel=1e-14)
    assert (values >= 0).all()
    assert (values.diff() <= 0).all()


def test_the_documented_shapes_are_what_comes() -> None:
    harmonic = Spectrum.parse("powerlaw:1").values(64)
    assert harmonic[0] / harmonic[15] == pytest.approx(16)
    spiked = Spectrum.parse("spiked:3,20").values(10)
    assert (spiked[:3] / spiked[3]).tolist() == pytest.approx([20, 20, 20])


@pytest.mark.parametrize(
    "text",
    [
        "harmonic",
        "powerlaw:0",
        "powerlaw:x",
        "powerlaw:100",
        "spiked:0,2",
        "spiked:2,1",
        "spiked:2",
    ],
)
def test_bad_spectra_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"must be powerlaw:P .* or spiked.*; got '{text}'"):
        Spectrum.parse(text)


def test_spectra_that_do_not_fit_the_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match="K must be below d=4, got K=4"):
        Spectrum.parse("spiked:4,2").values(4)
    with pytest.raises(ValueError, match="at least two different values"):
        Spectrum("flat", torch.ones).values(3)


def test_a_rotation_keeps_the_spectrum_and_fills_the_matrix() -> None:
    problem = rotated(Spectrum.parse("powerlaw:1"), 16, generator_for(0, "test"))
    identity = torch.eye(16, dtype=torch.float64)
    torch.testing.assert_close(problem.basis.T @ problem.basis, identity, atol=1e-13, rtol=0)
    assert torch.equal(problem.H, problem.H.T)
    found = torch.linalg.eigvalsh(problem.H).flip(0)
    torch.testing.assert_close(found, problem.eigenvalues, atol=1e-13, rtol=0)
    assert (problem.H - torch.diag(problem.H.diagonal())).norm() > 1


def test_rotations_are_uniform_to_second_order() -> None:
    """Entries of a uniform rotation have mean 0 and variance 1/d; QR alone gives biased signs."""
    draws = generator_for(0, "rotations")
    found = torch.stack([random_rotation(3, draws) for _ in range(4000)])
    assert found.mean(0).abs().max() < 5 * (1 / 3 / 4000) ** 0.5
    # Var(r^2) = 2(d-1) / (d^2 (d+2)) for one entry of a uniform rotation
    assert (found.square().mean(0) - 1 / 3).abs().max() < 5 * (4 / 45 / 4000) ** 0.5


@pytest.mark.parametrize("curvature", [0.3, 1.0, 5.0])
def test_gradients_have_the_curvature_that_was_asked_for(curvature: float) -> None:
    problem = rotated(Spectrum.parse("powerlaw:1"), 32, generator_for(1, "test"))
    g = problem.gradient_with_curvature(curvature)
    assert g.norm().item() == pytest.approx(1, rel=1e-13)
    assert (g @ problem.H @ g).item() == pytest.approx(curvature, rel=1e-12)


def test_the_even_gradient_has_the_same_energy_everywhere_and_both_signs() -> None:
    g = even_gradient(64, generator_for(0, "test"))
    assert g.square().tolist() == pytest.approx([1 / 64] * 64)
    assert 0 < (g > 0).sum() < 64


def test_a_diagonal_problem_is_its_spectrum() -> None:
    problem = diagonal(Spectrum.parse("powerlaw:2"), 5)
    assert torch.equal(problem.H.diagonal(), problem.eigenvalues)
    assert problem.d == 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"q": 0}, "q must be an integer >= 1 and <= 4096, got 0"),
        ({"d": 1}, "d must be an integer >= 2 and <= 4096, got 1"),
        ({"d": 5000}, "d must be an integer >= 2 and <= 4096, got 5000"),
        ({"samples": 639}, "samples must be an integer >= 640 and <= 1000000000, got 639"),
        ({"seed": -1}, "seed must be an integer >= 0 and <="),
        ({"block": 48}, "block must divide large_d=256 without remainder, got 48"),
        ({"steps": 0}, "steps must be an integer >= 1 and <= 10000, got 0"),
        ({"spectrum": "cubic"}, "spectrum must be powerlaw:P"),
        ({"d": 4, "spectrum": "spiked:4,2"}, "K must be below d=4"),
    ],
)
def test_settings_name_the_argument_what_is_allowed_and_what_came(
    given: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SandboxSettings(**given)  # type: ignore[arg-type]


def test_settings_refuse_a_number_that_is_no_integer() -> None:
    with pytest.raises(TypeError, match=r"q must be an integer >= 1 and <= 4096, got 2\.5"):
        SandboxSettings(q=2.5)  # type: ignore[arg-type]
