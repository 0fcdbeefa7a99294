"""Factors against the matrices that they stand for."""

import pytest
import torch

from references import assert_close
from risegrad.memory.factor import Diagonal, Factor

DIM = 7


def positive(dim=DIM, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(2 * dim, dim, generator=generator, dtype=torch.float64)
    scale = torch.arange(1, dim + 1, dtype=torch.float64) ** 1.5
    return ((rows * scale).T @ (rows * scale) / len(rows)).to(dtype)


def drawn(rows=DIM, columns=3, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def cut(matrix, rank):
    """The matrix with its lowest eigenvalues replaced by their mean."""
    values, vectors = torch.linalg.eigh(matrix)
    lowest = len(values) - rank
    values = values.clone()
    values[:lowest] = values[:lowest].mean()
    return vectors @ values.diag() @ vectors.T


def kinds():
    full = Factor(positive())
    return {
        "full": (full, positive()),
        "low": (full.truncated(3), cut(positive(), 3)),
        "diagonal": (Diagonal(positive().diagonal().clone()), positive().diagonal().diag()),
    }


@pytest.fixture(params=["full", "low", "diagonal"])
def pair(request):
    return kinds()[request.param]


@pytest.mark.parametrize("power", [-1.0, -0.5])
@pytest.mark.parametrize("damping", [0.01, 0.3, 10.0])
def test_the_filter_is_a_power_of_the_damped_matrix(pair, damping, power):
    side, matrix = pair
    damped = matrix / (matrix.trace() / DIM) + damping * torch.eye(DIM, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(damped)
    expected = vectors @ (values**power).diag() @ vectors.T @ drawn()
    assert (side.filtered(drawn(), damping, power) - expected).abs().max() < 1e-10
    right = side.filtered_right(drawn().T, damping, power)
    assert (right - expected.T).abs().max() < 1e-10


def test_two_half_filters_are_one(pair):
    side, _ = pair
    half = side.filtered(side.filtered(drawn(), 0.3, -0.5), 0.3, -0.5)
    assert (half - side.filtered(drawn(), 0.3)).abs().max() < 1e-12


def test_products_means_and_dimensions(pair):
    side, matrix = pair
    assert_close(side.product(drawn()), matrix @ drawn())
    assert side.mean == pytest.approx(float(matrix.trace()) / DIM, rel=1e-12)
    scaled = matrix / side.mean
    inverse = torch.linalg.inv(scaled + 0.3 * torch.eye(DIM, dtype=torch.float64))
    assert side.effective_dimension(0.3) == pytest.approx(float((scaled @ inverse).trace()))


def test_compressed_is_the_congruence():
    for name in ("full", "low"):
        side, matrix = kinds()[name]
        assert_close(side.compressed(drawn()).dense(), drawn().T @ matrix @ drawn())


def test_scale_does_not_matter_to_the_filter(pair):
    side, _ = pair
    big = side.scaled(1e4)
    assert (big.filtered(drawn(), 0.3) - side.filtered(drawn(), 0.3)).abs().max() < 1e-12


@pytest.mark.parametrize(("one", "other"), [(None, None), (2, 2), (2, 3), (5, 6), (3, None)])
def test_sums_are_exact(one, other):
    a, b = Factor(positive()), Factor(positive(seed=1))
    a, b = a if one is None else a.truncated(one), b if other is None else b.truncated(other)
    expected = a.dense() + 0.7 * b.dense()
    assert_close(a.plus(b, 0.7).dense(), expected)
    if one == other == 2:
        assert a.plus(b, 0.7).rank == 4  # still low rank, and nothing is lost


def test_truncation_keeps_the_trace_and_the_top():
    full = Factor(positive())
    for rank in (1, 3, 6):
        low = full.truncated(rank)
        assert low.rank == rank
        assert low.trace == pytest.approx(full.trace, rel=1e-12)
        assert_close(low.dense(), cut(positive(), rank))
    assert full.truncated(DIM) is full
    assert full.truncated(3).bytes == 8 * (3 * DIM + 3 + 1)


@pytest.mark.parametrize("rank", [None, 2, 5])
def test_growing_adds_nothing_and_cutting_may_come_first(rank):
    full = Factor(torch.diag(torch.arange(6.0, 0, -1)).double())
    kept = full if rank is None else full.truncated(rank)
    grown = kept.grown(9)
    assert grown.dim == 9
    assert grown.trace == pytest.approx(full.trace)
    wanted = full.grown(9) if rank is None else full.grown(9).truncated(rank)
    assert_close(grown.dense(), wanted.dense())
    assert full.grown(9).dense()[6:].count_nonzero() == 0
    assert kept.grown(6) is kept


def test_a_factor_that_is_zero_turns_nothing():
    """A fresh LoRA's B'DB: nothing to protect, and no division by zero."""
    for side in (Factor(torch.zeros(DIM, DIM)), Diagonal(torch.zeros(DIM))):
        assert_close(side.filtered(drawn(), 0.5), drawn() / 0.5)
        assert side.effective_dimension(0.5) == 0


def test_eigenpairs_are_computed_once(monkeypatch):
    calls = []
    plain = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda m: calls.append(1) or plain(m))
    side = Factor(positive())
    for damping in (0.1, 0.2, 0.1):
        side.filtered(drawn(), damping)
        side.effective_dimension(damping)
    assert len(calls) == 1


def test_rotation_keeps_the_spectrum_and_nothing_else(pair):
    side, matrix = pair
    turned = side.rotated(torch.Generator().manual_seed(0))
    dense = turned.product(torch.eye(DIM, dtype=torch.float64))
    assert_close(torch.linalg.eigvalsh(dense), torch.linalg.eigvalsh(matrix))
    assert (dense - matrix).norm() > 0.3 * matrix.norm()


def test_low_precision_comes_back_as_it_went_in():
    side = Factor(positive(dtype=torch.float32))
    assert side.filtered(drawn().bfloat16(), 0.3).dtype == torch.bfloat16


NAN = torch.full((2, 2), float("nan"))
BAD = [
    (lambda: Factor(torch.zeros(2, 3)), ValueError, r"a square matrix, got shape \(2, 3\)"),
    (lambda: Factor(torch.zeros(0, 0)), ValueError, r"a square matrix, got shape \(0, 0\)"),
    (lambda: Factor(torch.zeros(2, 2).long()), TypeError, "floating-point numbers, got torch.int"),
    (lambda: Factor(NAN), FloatingPointError, "a factor must be finite"),
    (lambda: Factor(torch.tensor([[1.0, 1], [0, 1]])), ValueError, "must be symmetric"),
    (lambda: Factor(-torch.eye(2)), ValueError, "must not have a negative diagonal"),
    (lambda: Factor(torch.tensor([[1.0, 2], [2, 1]])).eigen, ValueError,
     r"no negative eigenvalue, got -1 \(largest: 3\)"),
    (lambda: Factor.of_eigenpairs(NAN, torch.ones(2), 0.0), FloatingPointError, "must be finite"),
    (lambda: Diagonal(torch.ones(2, 2)), ValueError, r"must be a vector, got shape \(2, 2\)"),
    (lambda: Diagonal(NAN[0]), FloatingPointError, "a factor must be finite"),
    (lambda: Diagonal(torch.tensor([1.0, -2])), ValueError, "must not be negative, got -2"),
    (lambda: Factor(positive()).filtered(drawn(), 0.0), ValueError,
     "damping must be a finite number > 0, got 0"),
    (lambda: Factor(positive()).effective_dimension(-1), ValueError, "damping must be .* got -1"),
    (lambda: Diagonal(torch.ones(2)).filtered(torch.ones(2, 1), float("nan")), ValueError,
     "damping must be a finite number > 0, got nan"),
    (lambda: Factor(positive()).truncated(0), ValueError, "rank must be an integer >= 1, got 0"),
    (lambda: Factor(positive()).plus(Factor(positive(3))), ValueError,
     "a factor of size 7 cannot add a factor of size 3"),
    (lambda: Diagonal(torch.ones(2)).plus(Factor(positive(2))), ValueError,
     "a diagonal of size 2 cannot add a factor of size 2"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "message"), BAD)
def test_bad_factors(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def of_units_that_seldom_fire(seed, units=6):
    """Second moments behind a ReLU: few of 64 units ever fire, each on its own scale."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.randperm(64, generator=generator)[:units]
    x = torch.randn(256, units, generator=generator).relu() * torch.logspace(-2.5, -7, units)
    x = x * (torch.rand(256, units, generator=generator) < 0.1)
    matrix = torch.zeros(64, 64)
    matrix[at[:, None], at] = x.T @ x / 256
    return matrix


# In float32 some of these do not converge and others come out as nan, not the same on all machines.
@pytest.mark.parametrize("units", [6, 12])
@pytest.mark.parametrize("seed", [2, 8, 9, 15, 38, 84])
def test_units_that_seldom_fire(seed, units):
    matrix = of_units_that_seldom_fire(seed, units)
    wanted = torch.linalg.inv(
        matrix.double() / matrix.double().diagonal().mean() + 0.1 * torch.eye(64).double()
    )
    found = Factor(matrix).filtered(torch.eye(64), 0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


def _nan_in(broken):
    """``eigh`` that says nothing and gives no numbers in these precisions."""
    right = torch.linalg.eigh

    def eigh(matrix):
        values, vectors = right(matrix)
        return (values * torch.nan, vectors) if matrix.dtype in broken else (values, vectors)

    return eigh


def test_eigenvalues_that_are_no_numbers_are_found_again(monkeypatch):
    matrix = positive(5).float()
    wanted = torch.linalg.eigvalsh(matrix.double()).flip(0).float()
    monkeypatch.setattr(torch.linalg, "eigh", _nan_in({torch.float32}))
    found = Factor(matrix).eigen
    assert found.values.dtype == found.vectors.dtype == torch.float32
    torch.testing.assert_close(found.values, wanted)


def test_eigenvalues_that_cannot_be_found_are_an_error(monkeypatch):
    monkeypatch.setattr(torch.linalg, "eigh", _nan_in({torch.float32, torch.float64}))
    with pytest.raises(FloatingPointError, match="no eigenvectors of a factor of size 5"):
        Factor(positive(5)).filtered(torch.eye(5), 0.1)
