"""What the theory asks of its arguments, the products it is made of, and partitions into blocks.

Every check returns its argument in float64 or raises an error that names the argument, what is
allowed and what came. The identities need only symmetry; only where a result is read as damage or
as a worst case must the curvature be positive semidefinite (Assumption 2.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.checks import check_positive_int
from risegrad.theory.calibration import mean_factor, tau

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


def check_metric(P: object, g: object) -> tuple[Tensor, Tensor]:
    """A positive semidefinite metric ``P`` and a ``g`` of its size."""
    metric, vector = check_psd("P", P), check_vector("g", g)
    check_matching(metric, vector, ("P", "g"))
    return metric, vector


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


def matvec(H: Tensor, v: Tensor) -> Tensor:
    """``H v`` over leading dimensions.

    >>> matvec(torch.diag(torch.tensor([1.0, 2.0])), torch.ones(3, 2)).tolist()
    [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]
    """
    # One matrix product for a batch of vectors under one matrix, instead of one per vector.
    return v @ H.mT if H.dim() == 2 else (H @ v[..., None]).squeeze(-1)


def dot(v: Tensor, w: Tensor) -> Tensor:
    """``v . w`` over leading dimensions."""
    return (v * w).sum(-1)


def length(v: Tensor) -> Tensor:
    """``|v|`` over leading dimensions."""
    return dot(v, v).sqrt()


def quadratic(H: Tensor, v: Tensor) -> Tensor:
    """``v' H v`` over leading dimensions."""
    return dot(v, matvec(H, v))


def trace(H: Tensor) -> Tensor:
    """``tr H`` over leading dimensions."""
    return H.diagonal(dim1=-2, dim2=-1).sum(-1)


def outer(v: Tensor) -> Tensor:
    """``v v'`` over leading dimensions."""
    return v[..., :, None] * v[..., None, :]


def scaled_identity(scale: Tensor, d: int) -> Tensor:
    """``scale I`` over leading dimensions."""
    return scale[..., None, None] * torch.eye(d, dtype=scale.dtype, device=scale.device)


def operator_norm(H: Tensor) -> Tensor:
    """The largest singular value over leading dimensions."""
    norm: Tensor = torch.linalg.matrix_norm(H, ord=2)
    return norm


def top_eigenvalue(H: Tensor) -> Tensor:
    """The largest eigenvalue of a symmetric matrix over leading dimensions."""
    values: Tensor = torch.linalg.eigvalsh(H)
    return values[..., -1]


def inverse_root(H: Tensor) -> Tensor:
    """``H^(-1/2)`` of a positive definite matrix."""
    values, vectors = torch.linalg.eigh(H)
    root: Tensor = (vectors * values[..., None, :] ** -0.5) @ vectors.mT
    return root


@dataclass(frozen=True)
class Partition:
    """Blocks in order; ``queries`` holds one ``q_b`` per block."""

    sizes: tuple[int, ...]
    queries: tuple[int, ...]

    @staticmethod
    def of(sizes: Sequence[int], q: int | Sequence[int], d: int) -> "Partition":
        """Checked against the dimension ``d`` that the blocks must cover.

        >>> Partition.of([2, 1], 4, d=3)
        Partition(sizes=(2, 1), queries=(4, 4))
        """
        checked = check_sizes(sizes, d)
        return Partition(checked, check_block_queries(q, len(checked)))

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where each block lies.

        >>> Partition((2, 1), (4, 4)).slices
        (slice(0, 2, None), slice(2, 3, None))
        """
        ends = [sum(self.sizes[: i + 1]) for i in range(len(self.sizes))]
        return tuple(slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True))

    @property
    def mean_factors(self) -> tuple[float, ...]:
        """``a_b = sqrt(q_b/(q_b+d_b+1))`` of each block."""
        return tuple(mean_factor(d, q) for d, q in zip(self.sizes, self.queries, strict=True))

    @property
    def taus(self) -> tuple[float, ...]:
        """``tau_b = d_b/(q_b+d_b+1)`` of each block."""
        return tuple(tau(d, q) for d, q in zip(self.sizes, self.queries, strict=True))

    @property
    def divisors(self) -> tuple[int, ...]:
        """``q_b + d_b + 1`` of each block: the divisor of its covariance."""
        return tuple(q + d + 1 for d, q in zip(self.sizes, self.queries, strict=True))

    def split(self, v: Tensor) -> list[Tensor]:
        """The blocks ``v_b`` of a vector (..., d)."""
        return [v[..., part] for part in self.slices]

    def diagonal(self, H: Tensor) -> list[Tensor]:
        """The diagonal blocks ``H_bb`` of a matrix (..., d, d)."""
        return [H[..., part, part] for part in self.slices]

    def spread(self, values: Sequence[float]) -> Tensor:
        """One number per block, repeated over its coordinates.

        >>> Partition((2, 1), (4, 4)).spread([5.0, 7.0]).tolist()
        [5.0, 5.0, 7.0]
        """
        repeats = torch.tensor(self.sizes)
        return torch.tensor(values, dtype=torch.float64).repeat_interleave(repeats)


def block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """``blkdiag`` over leading dimensions.

    >>> block_diagonal([torch.ones(1, 1), 2 * torch.ones(1, 1)]).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    d = sum(block.shape[-1] for block in blocks)
    result = blocks[0].new_zeros((*blocks[0].shape[:-2], d, d))
    start = 0
    for block in blocks:
        end = start + block.shape[-1]
        result[..., start:end, start:end] = block
        start = end
    return result


def block_diagonal_part(H: Tensor, partition: Partition) -> Tensor:
    """``H_blk``: the diagonal blocks of ``H``, zero elsewhere."""
    return block_diagonal(partition.diagonal(H))


@dataclass(frozen=True)
class BlockSums:
    """A quadratic in parts: ``within`` (..., B) one per block, ``between`` all pairs of blocks."""

    within: Tensor
    between: Tensor

    @property
    def total(self) -> Tensor:
        """Within blocks plus between them."""
        return self.within.sum(-1) + self.between


def check_residuals(
    H: Tensor, name: str, vector: Tensor, covariances: Sequence[Tensor]
) -> tuple[Tensor, Tensor, list[Tensor], Partition]:
    """``H``, a vector of its size, covariances whose sizes cover it, and the blocks they make."""
    matrix, checked = check_symmetric("H", H), check_vector(name, vector)
    check_matching(matrix, checked, ("H", name))
    sigmas = [check_psd(f"covariances[{i}]", sigma) for i, sigma in enumerate(covariances)]
    blocks = Partition.of([sigma.shape[-1] for sigma in sigmas], 1, checked.shape[-1])
    return matrix, checked, sigmas, blocks
