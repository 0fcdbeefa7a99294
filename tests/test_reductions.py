"""Norms and dot products of long vectors, where running sums in float32 lose whole percents."""

import pytest
import torch

from references import assert_close
from risegrad.core.arithmetic import LONG, Piece, dot, measure, norm
from risegrad.core.shapers import one_draw
from risegrad.zeroth_order import spsa

EXACT = 5e-5  # of a long float32 sum; torch's own is off by 2e-2


def relative(found, exact):
    return abs(found.double() / exact - 1).max().item()


@pytest.mark.parametrize("size", [1, 1000, LONG, LONG + 1, (1 << 24) + 4097])
def test_of_equal_elements(size):
    x = torch.full((size,), 0.1)
    square = size * x[0].double().square()
    assert relative(norm(x), square.sqrt()) < EXACT
    assert relative(dot(x, x), square) < EXACT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_rows(dtype):
    x = torch.randn(3, 2 * LONG + 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    assert_close(norm(x), x.double().square().sum(-1).sqrt(), dtype)
    assert norm(x).dtype == dtype
    assert torch.equal(norm(x[:, :7]), torch.linalg.vector_norm(x[:, :7], dim=-1))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_elements_are_seen(value):
    x = torch.ones(LONG + 1)
    x[5] = value
    assert not norm(x).isfinite()
    assert not dot(x, x).isfinite()


@pytest.mark.parametrize("shape", [(1 << 23,), (2, 1 << 22)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_are_measured_right(shape, dtype):
    g = torch.full(shape, 0.1, dtype=dtype)
    noise = torch.full(shape, 0.3, dtype=dtype)
    length, product = measure(Piece(g, noise, 0))
    wide = g.double()
    assert relative(length, wide.square().sum(-1).sqrt()) < EXACT
    assert relative(product, (wide * noise.double()).sum(-1)) < EXACT


def test_one_draw_of_a_long_gradient():
    g = torch.full((1 << 23,), 0.1)
    across = torch.tensor([1.0, -1.0]).repeat(len(g) // 2)
    shaped = one_draw(g, across, torch.tensor(4.0), 4)
    exact = one_draw(g[:2].double(), across[:2].double(), torch.tensor(4.0).double(), 4)
    # |g| grows with the root of d, and the scale falls with that of d + 5.
    exact *= (len(g) / 2 * (2 + 5) / (len(g) + 5)) ** 0.5
    found = shaped[:2].double()
    assert abs((found[0] - found[1]) / (exact[0] - exact[1]) - 1) < EXACT


def test_the_norm_of_an_estimate():
    weight = torch.nn.Parameter(torch.zeros(1 << 23))
    estimate = spsa(lambda: weight[0], [("weight", weight)])
    assert abs(estimate.norm / weight.grad.double().norm().item() - 1) < 1e-6
