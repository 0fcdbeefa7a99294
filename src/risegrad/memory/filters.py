"""Filters of many matrices at once, and the stacked sides that they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from risegrad.memory.factor import Factor, Side


class Filters(Protocol):
    """Symmetric matrices, one for each of a stack of matrices."""

    def left(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """``P x``, perhaps written to ``out``."""

    def right_(self, x: Tensor) -> Tensor:
        """``x P``, perhaps in the place of ``x``."""


@dataclass(frozen=True)
class Whole(Filters):
    """Written out."""

    matrices: Tensor

    def left(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.matmul(self.matrices, x, out=out)

    def right_(self, x: Tensor) -> Tensor:
        return x @ self.matrices


@dataclass(frozen=True)
class NearIdentity(Filters):
    """``I + V diag(w) V'``"""

    vectors: Tensor
    weights: Tensor

    def left(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        seen = self.vectors.mT @ x
        return torch.baddbmm(x, self.vectors, seen.mul_(self.weights[..., None]), out=out)

    def right_(self, x: Tensor) -> Tensor:
        seen = x @ self.vectors
        return x.baddbmm_(seen.mul_(self.weights[:, None]), self.vectors.mT)


@dataclass(frozen=True)
class Scales(Filters):
    """Diagonal ones."""

    values: Tensor

    def left(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.mul(x, self.values[..., None], out=out)

    def right_(self, x: Tensor) -> Tensor:
        return x.mul_(self.values[:, None])


class SideStack:
    """The sides of as many parameters: all factors of one size and rank, or all diagonals."""

    def __init__(self, sides: Sequence[Side], damping: float, dtype: torch.dtype) -> None:
        self._sides, self._damping, self._dtype = sides, damping, dtype

    @cached_property
    def filters(self) -> Filters:
        """``(F/t + rho)^-1 / size``"""
        first, rho = self._sides[0], self._damping
        if isinstance(first, Factor) and first.rank is None:
            return Whole(self._joined([s.whole_filter(rho, -1.0) for s in self._factors]))
        if isinstance(first, Factor):
            return NearIdentity(self._vectors, self._gains(self._values) / self.size[:, None] - 1)
        return Scales(self._gains(self._joined([s.tensors()["diagonal"] for s in self._sides])))

    @cached_property
    def size(self) -> Tensor:
        """What the filters leave out: the filter off the eigenvectors of a low-rank factor."""
        if isinstance(self._sides[0], Factor) and self._sides[0].rank is not None:
            return self._gains(self._rest[:, None])[:, 0]
        return torch.ones(len(self._sides), dtype=self._dtype, device=self._sides[0].like.device)

    def seen_through(self, rows: Tensor) -> Tensor:
        """``R F R'`` for matrices ``R`` (n, r, dim)."""
        rows = rows.contiguous()  # products of a matrix with itself are slow on its transpose
        if self._factors[0].rank is None:
            return rows @ self._matrices @ rows.mT
        seen = rows @ self._vectors
        rest: Tensor = self._rest[:, None, None] * (rows @ rows.mT)
        return rest.baddbmm_(seen * (self._values - self._rest[:, None])[:, None], seen.mT)

    @property
    def _factors(self) -> list[Factor]:
        return [side for side in self._sides if isinstance(side, Factor)]

    @cached_property
    def _vectors(self) -> Tensor:
        return self._joined([factor.eigen.vectors for factor in self._factors])

    @cached_property
    def _values(self) -> Tensor:
        return self._joined([factor.eigen.values for factor in self._factors])

    @cached_property
    def _rest(self) -> Tensor:
        return self._joined([factor.eigen.rest for factor in self._factors])

    @cached_property
    def _matrices(self) -> Tensor:
        return self._joined(
            [factor.matrix for factor in self._factors if factor.matrix is not None]
        )

    def _gains(self, values: Tensor) -> Tensor:
        """``1/(f/t + rho)`` of eigenvalues (n, k); a side that is zero has no mean to divide by."""
        means = [side.mean or 1.0 for side in self._sides]
        mean = torch.tensor(means, dtype=torch.float64).to(values)[:, None]
        return 1 / (values / mean + self._damping)

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        # One layer alone, such as a large one, is not copied.
        joined = tensors[0][None] if len(tensors) == 1 else torch.stack([*tensors])
        return joined.to(self._dtype)


def kind_of(side: Side) -> tuple[object, ...]:
    """What sides of one stack have in common."""
    rank = side.rank if isinstance(side, Factor) else None
    return type(side), side.dim, rank, side.like.dtype, side.like.device


def filters_of(curvature: Tensor, damping: float) -> Tensor:
    """``(F/t + rho)^-1`` of small matrices ``F`` (n, r, r) that change in every step.

    By an inverse, which a device does for all at once and without telling the host how it went. A
    damping within the rounding of ``F/t`` is lifted above it: there, no inverse is to be trusted.
    """
    size = curvature.shape[-1]
    mean = curvature.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    rho = max(damping, 8 * size * torch.finfo(curvature.dtype).eps)
    eye = torch.eye(size, dtype=curvature.dtype, device=curvature.device)
    damped = torch.where(mean > 0, curvature / mean, curvature).add_(eye, alpha=rho)
    inverse: Tensor = torch.linalg.inv_ex(damped).inverse
    return inverse
