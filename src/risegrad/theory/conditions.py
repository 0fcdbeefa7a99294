"""What the theory asks of its arguments, as one function per condition.

Every function returns its argument in float64 or raises an error that names the argument, what is
allowed and what came. The identities need only symmetry; only where a result is read as damage or
as a worst case must the curvature be positive semidefinite (Assumption 2.1).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from risegrad.common.checks import check_positive_int

Count = int | Tensor

# Relative to the largest entry or eigenvalue: far above the rounding of a float64 product of
# orthogonal factors, far below any asymmetry or negative curvature a person would mean.
RELATIVE_TOLERANCE = 1e-9


def tolerance(value: object) -> float:
    """How much rounding to forgive: more for curvature that came in single precision."""
    eps = torch.finfo(value.dtype).eps if isinstance(value, Tensor) else 0.0
    return max(RELATIVE_TOLERANCE, 100 * eps)


def check_real(name: str, value: object) -> Tensor:
    """A finite real floating-point tensor, as float64."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be a real floating-point tensor, got {came}")
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name} must be finite, got NaN or infinite entries")
    return value.to(torch.float64)


def check_vector(name: str, value: object) -> Tensor:
    """A vector (..., d) with d >= 1."""
    vector = check_real(name, value)
    if vector.dim() == 0 or vector.shape[-1] == 0:
        raise ValueError(f"{name} must have shape (..., d) with d >= 1, got {tuple(vector.shape)}")
    return vector


def check_nonzero(name: str, value: object) -> Tensor:
    """A vector (..., d) none of whose batch entries is zero."""
    vector = check_vector(name, value)
    if bool((vector == 0).all(-1).any()):
        raise ValueError(f"{name} must be nonzero, got a zero vector")
    return vector


def check_symmetric(name: str, value: object) -> Tensor:
    """A symmetric matrix (..., d, d)."""
    matrix = check_real(name, value)
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] == 0:
        raise ValueError(f"{name} must have shape (..., d, d), got {tuple(matrix.shape)}")
    gap = (matrix - matrix.mT).abs().max()
    if bool(gap > tolerance(value) * matrix.abs().max()):
        raise ValueError(f"{name} must be symmetric, got max |{name} - {name}^T| = {gap:.3g}")
    # The forgiven rounding is taken out, so that what is passed on in float64 is symmetric there.
    return (matrix + matrix.mT) / 2


def check_psd(name: str, value: object) -> Tensor:
    """A positive semidefinite matrix (..., d, d)."""
    matrix = check_symmetric(name, value)
    values = torch.linalg.eigvalsh(matrix)
    if bool((values[..., 0] < -tolerance(value) * values.abs().amax(-1)).any()):
        least = values[..., 0].min()
        raise ValueError(f"{name} must be positive semidefinite, got least eigenvalue {least:.3g}")
    return matrix


def check_positive_definite(name: str, value: object) -> Tensor:
    """A positive definite matrix (..., d, d)."""
    matrix = check_symmetric(name, value)
    values = torch.linalg.eigvalsh(matrix)
    # A singular matrix comes out of eigvalsh with a least eigenvalue of either sign.
    if bool((values[..., 0] <= torch.finfo(torch.float64).eps * values.abs().amax(-1)).any()):
        least = values[..., 0].min()
        raise ValueError(f"{name} must be positive definite, got least eigenvalue {least:.3g}")
    return matrix


def check_matching(H: Tensor, g: Tensor, names: tuple[str, str] = ("H", "g")) -> None:
    """The matrix and the vector have the same d."""
    if H.shape[-1] != g.shape[-1]:
        raise ValueError(
            f"{names[0]} and {names[1]} must have the same d, "
            f"got shapes {tuple(H.shape)} and {tuple(g.shape)}"
        )


def check_curvature(H: object, g: object) -> tuple[Tensor, Tensor]:
    """A symmetric ``H`` and a ``g`` of its size: what every identity needs."""
    matrix, vector = check_symmetric("H", H), check_vector("g", g)
    check_matching(matrix, vector)
    return matrix, vector


def check_damage(H: object, g: object) -> tuple[Tensor, Tensor]:
    """A positive semidefinite ``H`` and a ``g`` of its size: what a nonnegative damage needs."""
    matrix, vector = check_psd("H", H), check_vector("g", g)
    check_matching(matrix, vector)
    return matrix, vector


def check_count(name: str, value: object) -> float | Tensor:
    """A dimension or query count: an integer >= 1, or a tensor of them (one entry per block).

    It comes back as floating point, because the products of counts in a fourth moment leave the
    range of 64-bit integers long before they leave that of float64.
    """
    if not isinstance(value, Tensor):
        return float(check_positive_int(name, value))
    if value.is_complex() or value.dtype == torch.bool or bool((value != value.round()).any()):
        raise TypeError(f"{name} must hold integers >= 1, got {value.tolist()}")
    if bool((value < 1).any()):
        raise ValueError(f"{name} must hold integers >= 1, got {value.tolist()}")
    return value.to(torch.float64)


def check_sizes(sizes: Sequence[int], d: int) -> tuple[int, ...]:
    """Block sizes >= 1 that add up to ``d``."""
    checked = tuple(check_positive_int(f"sizes[{i}]", size) for i, size in enumerate(sizes))
    if sum(checked) != d:
        raise ValueError(f"sizes must add up to d = {d}, got {checked} with sum {sum(checked)}")
    return checked


def check_block_queries(q: int | Sequence[int], blocks: int) -> tuple[int, ...]:
    """One query count per block; an integer stands for all of them."""
    if not isinstance(q, Sequence):
        return (check_positive_int("q", q),) * blocks
    if len(q) != blocks:
        raise ValueError(f"q must be an integer or one per block ({blocks}), got {len(q)}")
    return tuple(check_positive_int(f"q[{i}]", count) for i, count in enumerate(q))
