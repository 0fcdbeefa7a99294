"""A factor in full, or its top eigenpairs and one number for all other directions.

``U diag(w) U' + r (I - U U')``, with ``r`` such that the trace is kept: ``k d`` numbers instead of
``d^2``, and ``k d`` multiplications for each column that is filtered. ``U`` may be held in half
precision; all products are made in that of ``w``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from risegrad.common.checks import check_number, check_positive_int


class Side(ABC):
    """What a ``Factor`` and a ``Diagonal`` answer."""

    dim: int

    @property
    @abstractmethod
    def trace(self) -> float:
        """The sum of the eigenvalues."""

    @property
    def mean(self) -> float:
        """The mean eigenvalue ``t``."""
        return self.trace / self.dim

    @property
    def bytes(self) -> int:
        """The memory that its tensors take."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    @abstractmethod
    def filtered(self, x: Tensor, damping: float, power: float = -1.0) -> Tensor:
        """``(F/t + damping I)^power x`` for a matrix ``x`` with ``dim`` rows.

        A factor that is zero has no mean to divide by; it stays zero, so nothing is turned.
        """

    def filtered_right(self, x: Tensor, damping: float, power: float = -1.0) -> Tensor:
        """The same from the right: ``x (F/t + damping I)^power``."""
        return self.filtered(x.T, damping, power).T

    @abstractmethod
    def product(self, x: Tensor) -> Tensor:
        """``F x`` for a matrix with ``dim`` rows; gradients flow through ``x``."""

    @abstractmethod
    def compressed(self, b: Tensor) -> Side:
        """``B' F B``: the factor as coordinates see it that move the layer through ``B``."""

    @abstractmethod
    def effective_dimension(self, damping: float) -> float:
        """How many directions are above the damping: ``tr F/t (F/t + damping)^-1``."""

    def filter_trace(self, damping: float) -> float:
        """``tr (F/t + damping I)^-1``."""
        if self.mean == 0:
            return self.dim / check_damping(damping)
        # tr F/t (F/t + rho)^-1 + rho tr (F/t + rho)^-1 = dim
        return (self.dim - self.effective_dimension(damping)) / damping

    @abstractmethod
    def plus(self, other: Side, weight: float = 1.0) -> Side:
        """``self + weight * other``."""

    @abstractmethod
    def scaled(self, by: float) -> Side:
        """``by * self``."""

    @abstractmethod
    def grown(self, dim: int) -> Side:
        """With more coordinates behind its own, in which nothing has happened yet."""

    @abstractmethod
    def truncated(self, rank: int) -> Side:
        """The ``rank`` largest eigenpairs, and one number for all other directions."""

    @abstractmethod
    def rotated(self, generator: torch.Generator) -> Side:
        """The same spectrum in random directions: a control that knows nothing."""

    @abstractmethod
    def to(self, device: torch.device | str | None, dtype: torch.dtype | None = None) -> Side:
        """A copy on another device, or in another dtype."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All that has to be kept of it, by name."""

    @property
    def like(self) -> Tensor:
        """A tensor whose dtype and device are the factor's."""
        return next(iter(self.tensors().values()))


class Diagonal(Side):
    """One number per coordinate: norms, the tokens of an embedding, and the input 1 of a bias.

    ``measure``: the mean that filters divide by, if it is not its own. So a bias is measured by the
    inputs of the weight beside it, and both are turned down by the same standard.
    """

    def __init__(self, values: Tensor, measure: float | None = None) -> None:
        if values.ndim != 1 or not len(values):
            raise ValueError(f"a diagonal must be a vector, got shape {tuple(values.shape)}")
        if not bool(values.isfinite().all()):
            raise FloatingPointError("a factor must be finite")
        if bool((values < 0).any()):
            raise ValueError(f"a diagonal must not be negative, got {float(values.min()):.3g}")
        self.dim, self.values, self.measure = len(values), values, measure

    @property
    def trace(self) -> float:
        return float(self.values.double().sum())

    @property
    def mean(self) -> float:
        return self.trace / self.dim if self.measure is None else self.measure

    def filtered(self, x: Tensor, damping: float, power: float = -1.0) -> Tensor:
        rho, mean = check_damping(damping), self.mean
        if mean == 0:
            return x * float(rho**power)
        scale: Tensor = (self.values / mean + rho) ** power
        return (scale[:, None] * x.to(self.values)).to(x)

    def product(self, x: Tensor) -> Tensor:
        return self.values[:, None] * x.to(self.values)

    def compressed(self, b: Tensor) -> Diagonal:
        raise NotImplementedError("no adapter moves a layer that is remembered by its diagonal")

    def effective_dimension(self, damping: float) -> float:
        rho, mean = check_damping(damping), self.mean
        values = self.values.double() / (mean or 1.0)
        return float((values / (values + rho)).sum())

    def plus(self, other: Side, weight: float = 1.0) -> Diagonal:
        if not isinstance(other, Diagonal) or other.dim != self.dim:
            raise ValueError(f"a diagonal of size {self.dim} cannot add {named(other)}")
        return Diagonal(self.values + weight * other.values.to(self.values))

    def scaled(self, by: float) -> Diagonal:
        return Diagonal(self.values * by)

    def grown(self, dim: int) -> Diagonal:
        return Diagonal(torch.cat([self.values, self.values.new_zeros(dim - self.dim)]))

    def truncated(self, rank: int) -> Diagonal:
        """Itself: it is small as it is."""
        return self

    def rotated(self, generator: torch.Generator) -> Diagonal:
        return Diagonal(self.values[torch.randperm(self.dim, generator=generator)])

    def to(self, device: torch.device | str | None, dtype: torch.dtype | None = None) -> Diagonal:
        return Diagonal(self.values.to(device, dtype), self.measure)

    def tensors(self) -> dict[str, Tensor]:
        return {"diagonal": self.values}


def check_damping(damping: float) -> float:
    """The damping, which must be above 0."""
    return check_number("damping", damping, above=0)


def named(other: object) -> str:
    """What an object is, for an error text."""
    if isinstance(other, Side):
        return f"a {type(other).__name__.lower()} of size {other.dim}"
    return type(other).__name__


NEGATIVE = 1e-4
"""Eigenvalues below minus this share of the largest are no rounding."""


class Eigen(NamedTuple):
    """Orthonormal columns, their eigenvalues, and the eigenvalue of all directions off them."""

    vectors: Tensor
    values: Tensor
    rest: Tensor


class Factor(Side):
    """A full matrix, or top eigenpairs and one number for the rest."""

    def __init__(self, matrix: Tensor, *, checked: bool = False) -> None:
        if not checked:
            _check_matrix(matrix)
        self.dim = len(matrix)
        self.matrix: Tensor | None = matrix
        self._eigen: Eigen | None = None
        self._filter: tuple[tuple[float, float], float, Tensor] | None = None

    @classmethod
    def of_eigenpairs(cls, vectors: Tensor, values: Tensor, rest: Tensor | float) -> Factor:
        """``U diag(values) U' + rest (I - U U')`` from orthonormal columns ``U``."""
        found = cls.__new__(cls)
        found.dim, found.matrix, found._filter = len(vectors), None, None
        found._eigen = Eigen(
            vectors, values, torch.as_tensor(rest, dtype=values.dtype, device=values.device)
        )
        if not all(bool(part.isfinite().all()) for part in found._eigen):
            raise FloatingPointError("a factor must be finite")
        return found

    @property
    def rank(self) -> int | None:
        """Eigenpairs that are kept; None for a full matrix."""
        return None if self.matrix is not None else len(self.eigen.values)

    @property
    def eigen(self) -> Eigen:
        """The eigenpairs, largest first; computed once."""
        if self._eigen is None:
            assert self.matrix is not None
            self._eigen = _eigen(self.matrix)
        vectors, values, rest = self._eigen
        return Eigen(vectors.to(values), values, rest)

    @property
    def _held(self) -> Eigen:
        """The eigenpairs of a low-rank factor as it holds them."""
        assert self._eigen is not None
        return self._eigen

    @property
    def like(self) -> Tensor:
        return self._held.values if self.matrix is None else self.matrix

    def shortened(self) -> Factor:
        """With eigenvectors of two bytes a number instead of four: they need three digits."""
        if self.matrix is not None or self._held.vectors.dtype != torch.float32:
            return self
        return Factor.of_eigenpairs(self._held.vectors.half(), *self._held[1:])

    @cached_property
    def trace(self) -> float:
        if self.matrix is not None:
            return float(self.matrix.diagonal().double().sum())
        values, rest = self.eigen.values.double(), self.eigen.rest.double()
        return float(values.sum() + (self.dim - len(values)) * rest)

    def filtered(self, x: Tensor, damping: float, power: float = -1.0) -> Tensor:
        rho, wide = check_damping(damping), x.to(self.like)
        if self.mean == 0:
            return x * float(rho**power)
        if self.matrix is not None:
            return (self.whole_filter(rho, power) @ wide).to(x)
        off, gains = self._low_filter(rho, power)
        vectors = self.eigen.vectors
        return torch.addmm(wide, vectors, gains[:, None] * (vectors.T @ wide), beta=off).to(x)

    def filtered_right(self, x: Tensor, damping: float, power: float = -1.0) -> Tensor:
        # Not by transposing twice: for whole weights the copies would cost as much as the filter.
        rho, wide = check_damping(damping), x.to(self.like)
        if self.mean == 0:
            return x * float(rho**power)
        if self.matrix is not None:
            return (wide @ self.whole_filter(rho, power)).to(x)
        off, gains = self._low_filter(rho, power)
        vectors = self.eigen.vectors
        return torch.addmm(wide, (wide @ vectors) * gains, vectors.T, beta=off).to(x)

    def whole_filter(self, rho: float, power: float) -> Tensor:
        """The filter of a full factor; the last is kept, since every step asks for it."""
        if self._filter is None or self._filter[0] != (rho, power):
            vectors, values, _ = self.eigen
            gains = (values / self.mean + rho) ** power
            self._filter = ((rho, power), 0.0, (vectors * gains) @ vectors.T)
        return self._filter[2]

    def _low_filter(self, rho: float, power: float) -> tuple[float, Tensor]:
        """``off (I - U U') + U (off + gains) U'``: off the eigenvectors, and what they add."""
        if self._filter is None or self._filter[0] != (rho, power):
            _, values, rest = self.eigen
            off = float((rest.double() / self.mean + rho) ** power)
            self._filter = ((rho, power), off, (values / self.mean + rho) ** power - off)
        return self._filter[1], self._filter[2]

    def product(self, x: Tensor) -> Tensor:
        wide = x.to(self.like)
        if self.matrix is not None:
            return self.matrix @ wide
        vectors, values, rest = self.eigen
        return rest * wide + vectors @ ((values - rest)[:, None] * (vectors.T @ wide))

    def compressed(self, b: Tensor) -> Factor:
        b = b.to(self.like)
        return Factor(b.T @ self.product(b), checked=True)

    def effective_dimension(self, damping: float) -> float:
        rho, mean = check_damping(damping), self.mean
        if mean == 0:
            return 0.0
        values, rest = self.eigen.values.double() / mean, self.eigen.rest.double() / mean
        off = (self.dim - len(values)) * rest / (rest + rho)
        return float((values / (values + rho)).sum() + off)

    def plus(self, other: Side, weight: float = 1.0) -> Factor:
        """``F + weight G``, exactly: eigenpairs of both span where the sum is not one number."""
        if not isinstance(other, Factor) or other.dim != self.dim:
            raise ValueError(f"a factor of size {self.dim} cannot add {named(other)}")
        many = (self.rank or self.dim) + (other.rank or self.dim)
        if self.matrix is not None or other.matrix is not None or many >= self.dim:
            return Factor(self.dense() + weight * other.dense().to(self.like), checked=True)
        (u, w, r), (v, s, q) = self.eigen, other.scaled(weight).to(self.like.device).eigen
        basis = torch.linalg.qr(torch.cat([u, v.to(u)], dim=1).double()).Q
        small = (basis.T @ u.double() * (w - r)) @ (u.T.double() @ basis)
        small = small + (basis.T @ v.double() * (s - q)) @ (v.T.double() @ basis)
        inner = _eigen(small)
        rest = r.double() + q.double()
        short = torch.promote_types(self._held.vectors.dtype, other._held.vectors.dtype)
        return Factor.of_eigenpairs(
            (basis @ inner.vectors).to(u.device, short), (inner.values + rest).to(u), rest.to(u)
        )

    def scaled(self, by: float) -> Factor:
        if self.matrix is not None:
            return Factor(self.matrix * by, checked=True)
        vectors, values, rest = self._held
        return Factor.of_eigenpairs(vectors, values * by, rest * by)

    def grown(self, dim: int) -> Factor:
        """With more rows and columns of zeros.

        Of new coordinates nothing is known, so nothing is to be kept in them, and the trace stays.
        A low-rank factor has one number for all directions off its eigenvectors, the new ones
        included: it is what the grown full factor is after it was cut.
        """
        more = dim - self.dim
        if not more:
            return self
        if self.matrix is not None:
            return Factor(functional.pad(self.matrix, (0, more, 0, more)), checked=True)
        vectors, values, rest = self._held
        off = (self.dim - len(values)) / (dim - len(values))
        return Factor.of_eigenpairs(functional.pad(vectors, (0, 0, 0, more)), values, rest * off)

    def truncated(self, rank: int) -> Factor:
        """The top ``rank`` eigenpairs, and one number that keeps the trace."""
        check_positive_int("rank", rank)
        if rank >= (self.rank or self.dim):
            return self
        vectors, values, _ = self.eigen if self.matrix is not None else self._held
        left = self.trace - float(values[:rank].double().sum())
        # A copy: a view would keep all vectors in memory.
        top = vectors[:, :rank].clone()
        return Factor.of_eigenpairs(top, values[:rank].clone(), max(left, 0) / (self.dim - rank))

    def dense(self) -> Tensor:
        """The matrix written out."""
        if self.matrix is not None:
            return self.matrix
        return self.product(torch.eye(self.dim).to(self.like))

    def rotated(self, generator: torch.Generator) -> Factor:
        _, values, rest = self.eigen
        drawn = torch.randn(self.dim, len(values), generator=generator, dtype=torch.float64)
        turned = torch.linalg.qr(drawn).Q.to(values)
        if self.matrix is None:
            return Factor.of_eigenpairs(turned.to(self._held.vectors), values, rest)
        return Factor((turned * values) @ turned.T, checked=True)

    def to(self, device: torch.device | str | None, dtype: torch.dtype | None = None) -> Factor:
        if self.matrix is None:
            return Factor.of_eigenpairs(*(part.to(device, dtype) for part in self._held))
        moved = self.matrix.to(device, dtype)
        return self if moved is self.matrix else Factor(moved, checked=True)

    def tensors(self) -> dict[str, Tensor]:
        if self.matrix is not None:
            return {"matrix": self.matrix}
        return self._held._asdict()


def _check_matrix(matrix: Tensor) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"a factor must be a square matrix, got shape {tuple(matrix.shape)}")
    if not matrix.is_floating_point():
        raise TypeError(f"a factor must have floating-point numbers, got {matrix.dtype}")
    if not bool(matrix.isfinite().all()):
        raise FloatingPointError("a factor must be finite")
    if float((matrix - matrix.T).abs().max()) > 1e-4 * float(matrix.abs().max()):
        raise ValueError("a factor must be symmetric")
    if bool((matrix.diagonal() < 0).any()):
        raise ValueError("a factor must not have a negative diagonal")


def check_not_negative(matrix: Tensor) -> None:
    """No eigenvalue below zero; Cholesky tells it much cheaper than eigenpairs."""
    shift = NEGATIVE * torch.linalg.matrix_norm(matrix.double())
    lifted = matrix.double() + shift * torch.eye(len(matrix), device=matrix.device)
    if bool(shift > 0) and int(torch.linalg.cholesky_ex(lifted).info):
        raise ValueError("a factor must have no negative eigenvalue")


def _eigen(matrix: Tensor) -> Eigen:
    values, vectors = _decomposed((matrix + matrix.T) / 2)
    values, vectors = values.flip(0), vectors.flip(1)
    if float(values[-1]) < -NEGATIVE * float(values[0].abs()):
        raise ValueError(
            f"a factor must have no negative eigenvalue, got {float(values[-1]):.3g} (largest: "
            f"{float(values[0]):.3g})"
        )
    return Eigen(vectors, values.clamp(min=0), values.new_zeros(()))


def _decomposed(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, smallest first, and eigenvectors.

    Behind a ReLU most rows may be zero and the others of very different sizes. In single precision
    LAPACK fails on many such matrices, with an error or by numbers that are none, which it does not
    say; in double precision on none that we met.
    """
    for precision in dict.fromkeys((matrix.dtype, torch.float64)):
        try:
            values, vectors = torch.linalg.eigh(matrix.to(precision))
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # documented, not in __all__
            continue
        if bool((values.sum() + vectors.sum()).isfinite()):
            return values.to(matrix), vectors.to(matrix)
    if bool(matrix.isfinite().all()):
        raise FloatingPointError(
            f"LAPACK finds no eigenvectors of a factor of size {len(matrix)}, although all of "
            "its numbers are finite"
        )
    return torch.full_like(matrix[0], torch.nan), torch.full_like(matrix, torch.nan)
