"""Estimates agree with dense matrices within the error that they state."""

import pytest
import torch

from references import assert_close
from risegrad.curvature.estimates import (
    Estimate,
    first_step_bounds,
    flat_signal,
    in_digits,
    top_eigenvalue,
)

D = 40


def matrix(kind: str, d: int = D) -> torch.Tensor:
    torch.manual_seed(5)
    basis = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64)).Q
    numbers = torch.arange(1, d + 1, dtype=torch.float64)
    values = {
        "decaying": 1 / numbers,
        "flat": 1 + numbers / d,
        "low rank": torch.where(numbers <= 3, numbers, 0),
        "indefinite": torch.where(numbers % 2 == 0, 1.0, -0.4) * 3 / numbers,
    }[kind]
    return (basis * values) @ basis.mT


class Counted:
    def __init__(self, matrix):
        self.matrix, self.products = matrix, 0

    def __matmul__(self, v):
        self.products += 1 if v.ndim == 1 else v.shape[1]
        return self.matrix @ v


@pytest.mark.parametrize("kind", ["decaying", "indefinite", "flat", "low rank"])
def test_the_largest_eigenvalue(kind):
    h = Counted(matrix(kind))
    found = top_eigenvalue(h, D, products=15)
    values = torch.linalg.eigvalsh(h.matrix)
    assert found.products == h.products <= 15
    assert (values - found.value).abs().min() <= found.error + 1e-9
    assert found.value <= values[-1] + 1e-9
    complete = top_eigenvalue(h, D, products=D)
    assert complete.value == pytest.approx(values[-1].item(), rel=1e-8)


def test_the_largest_eigenvalue_of_a_number():
    found = top_eigenvalue(torch.tensor([[3.0]], dtype=torch.float64), 1)
    assert (found.value, found.error) == (pytest.approx(3.0), 0)


@pytest.mark.parametrize("kind", ["decaying", "flat", "low rank"])
def test_flat_signal_bounds_close_on_the_truth(kind):
    h, rho = matrix(kind), 0.05
    g = torch.randn(D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = (g @ torch.linalg.solve(h + rho * torch.eye(D, dtype=torch.float64), g)).item()
    widths = []
    for products in (1, 3, 6, 30):
        found = flat_signal(h, g, rho, products, tolerance=1e-12)
        assert found.lower <= exact * (1 + 1e-9)
        assert exact <= found.upper * (1 + 1e-9)
        widths.append(found.upper - found.lower)
    assert widths == sorted(widths, reverse=True)
    assert found.lower == pytest.approx(exact, rel=1e-6)
    coarse = flat_signal(h, g, rho, 30, tolerance=0.3)
    assert coarse.products < 30
    assert coarse.upper <= 1.3 * coarse.lower


def test_the_first_step_is_free():
    h, rho = matrix("decaying"), 0.2
    g = torch.randn(D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    by_products = flat_signal(h, g, rho, 1, tolerance=1e-12)
    hg = h @ g
    free = first_step_bounds((g @ g).item(), (g @ hg).item(), (hg @ hg).item(), rho)
    assert_close(torch.tensor([free.lower, free.upper]),
                 torch.tensor([by_products.lower, by_products.upper]))  # fmt: skip
    assert first_step_bounds(0.0, 0.0, 0.0, rho).upper == 0
    zero = flat_signal(h, torch.zeros(D), rho)
    assert (zero.lower, zero.upper) == (0, 0)


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda h, g: flat_signal(h, g, 0.0), "rho must be a finite number > 0, got 0"),
        (lambda h, g: flat_signal(-h, g, 0.01), r"H_bb \+ rho I must be positive definite, got p"),
        (lambda h, g: first_step_bounds(1, -1, 1, 0.5), r"got g'\(H \+ rho I\)g = -0.5"),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(matrix("flat"), torch.ones(D, dtype=torch.float64))
