"""What an estimate says, and bounds that hold."""

import pytest
import torch

from risegrad.curvature.estimates import Estimate, first_step_bounds, in_digits


def test_bounds_of_the_first_step_hold_the_truth():
    torch.manual_seed(5)
    basis = torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64)).Q
    for values in (1 / torch.arange(1, 41).double(), 1 + torch.rand(40).double()):
        h, g, rho = (basis * values) @ basis.mT, torch.randn(40, dtype=torch.float64), 0.2
        exact = (g @ torch.linalg.solve(h + rho * torch.eye(40), g)).item()
        hg = h @ g
        found = first_step_bounds((g @ g).item(), (g @ hg).item(), (hg @ hg).item(), rho)
        # One step of conjugate gradients: x = g times the best length.
        length = (g @ g) / (g @ hg + rho * g @ g)
        rest = g - length * (hg + rho * g)
        assert found.lower == pytest.approx((length * g @ g).item())
        assert found.upper == pytest.approx(found.lower + (rest @ rest).item() / rho)
        assert found.lower <= exact <= found.upper
    assert first_step_bounds(0.0, 0.0, 0.0, rho).upper == 0
    with pytest.raises(ValueError, match=r"got g'\(H \+ rho I\)g = -0.5"):
        first_step_bounds(1, -1, 1, 0.5)


def test_what_an_estimate_says():
    assert str(Estimate(0.12345, 0.004)) == "0.123 ± 0.004"
    assert str(Estimate(0.12345)) == "0.123"
    for value, error, said in (
        (1.04, 0.003, "1.040 ± 0.003"), (310.0, 1234.0, "310 ± 1000"), (1.0, 1e-12, "1"),
        (0.0034, 0.004, "0.003 ± 0.004"), (0.5, 5e-5, "0.50000 ± 0.00005"),
        (2.11e-5, 2e-6, "2.1e-05 ± 2e-06"), (-12.3, 0.96, "-12 ± 1"),
        (-1e-9, 3e-8, "-1e-09 ± 3e-08"), (0.0, 0.5, "0.0 ± 0.5"),
    ):  # fmt: skip
        assert str(Estimate(value, error)) == said
    assert (in_digits(304.0, 2), in_digits(1e9), in_digits(0.0)) == ("300", "1e+09", "0")
    assert str(Estimate(float("nan"), 1.0)) == "nan ± 1"
