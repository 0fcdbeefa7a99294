"""Sums of second moments over rows that come batch by batch.

A full factor, and one small enough, is added up as it is. A large one of which few eigenpairs are
wanted is added up as a sketch ``F Omega`` with fixed random columns: that costs ``d m`` per row
instead of ``d^2``, holds ``d m`` numbers, and gives the top eigenpairs by Nystroem's formula. The
trace is exact in both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from risegrad.curvature.memory.factor import Factor
from risegrad.curvature.memory.side import Diagonal

DENSE = 1024
"""Up to this size a factor is added up in full, whatever its rank will be."""
COLUMNS = 4
"""Columns of a sketch for each eigenpair that is wanted."""


class Moments:
    """``sum a a'`` over rows ``a``."""

    def __init__(self, dim: int, rank: int | None, seed: int) -> None:
        self.dim, self.rank, self.seed = dim, rank, seed
        self.columns = 0 if rank is None or dim <= DENSE else min(dim, COLUMNS * rank + 8)
        self.total: Tensor | None = None
        self.omega: Tensor | None = None
        self.trace = 0.0

    def add(self, rows: Tensor) -> None:
        if self.total is None:
            self._start(rows)
        assert self.total is not None
        if self.omega is None:
            self.total.addmm_(rows.T, rows)
        else:
            self.total.addmm_(rows.T, rows @ self.omega)
            self.trace += float(rows.square().sum(dtype=torch.float64))

    def _start(self, rows: Tensor) -> None:
        if self.columns:
            generator = torch.Generator().manual_seed(self.seed)
            drawn = torch.randn(self.dim, self.columns, generator=generator, dtype=torch.float64)
            self.omega = torch.linalg.qr(drawn).Q.to(rows)
        self.total = rows.new_zeros(self.dim, self.columns or self.dim)

    def factor(self, divisor: float) -> Factor:
        """The sum over ``divisor`` as a factor of the wanted rank."""
        if self.total is None:
            return self._zero(torch.float32)
        if not bool(self.total.isfinite().all()):
            raise FloatingPointError("not finite")
        if self.omega is None:
            return self._finish(Factor((self.total / divisor).cpu(), checked=True))
        return self._nystroem(self.total.double().cpu() / divisor, self.trace / divisor)

    def _nystroem(self, sketch: Tensor, trace: float) -> Factor:
        """``Y (Omega' Y)^+ Y'`` of ``Y = F Omega``, with a shift that keeps its root stable."""
        assert self.omega is not None
        assert self.rank is not None
        omega, dtype = self.omega.double().cpu(), self.omega.dtype
        if trace == 0:
            return self._zero(dtype)
        shift = torch.finfo(dtype).eps * trace
        shifted = sketch + shift * omega
        inner = omega.T @ shifted
        root = torch.linalg.cholesky((inner + inner.T) / 2)
        half = torch.linalg.solve_triangular(root, shifted.T, upper=False).T
        vectors, values, _ = torch.linalg.svd(half, full_matrices=False)
        top = (values[: self.rank].square() - shift).clamp(min=0)
        rest = max(trace - float(top.sum()), 0.0) / (self.dim - self.rank)
        return Factor.of_eigenpairs(vectors[:, : self.rank].to(dtype), top.to(dtype), rest)

    def _zero(self, dtype: torch.dtype) -> Factor:
        """No row came, or all were zero: nothing to keep."""
        if self.rank is None or self.rank >= self.dim:
            return Factor(torch.zeros(self.dim, self.dim, dtype=dtype), checked=True)
        vectors = torch.eye(self.dim, self.rank, dtype=dtype)
        return Factor.of_eigenpairs(vectors, torch.zeros(self.rank, dtype=dtype), 0.0)

    def _finish(self, full: Factor) -> Factor:
        return full if self.rank is None else full.truncated(self.rank)


class Squares:
    """``sum a_i^2`` for every coordinate, or how often each token came."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.total: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        self._add(rows.square().sum(0))

    def count(self, tokens: Tensor, like: Tensor) -> None:
        self._add(torch.bincount(tokens, minlength=self.dim).to(like))

    def _add(self, part: Tensor) -> None:
        self.total = part if self.total is None else self.total + part

    def diagonal(self, divisor: float) -> Diagonal:
        total = torch.zeros(self.dim) if self.total is None else self.total.cpu()
        if not bool(total.isfinite().all()):
            raise FloatingPointError("not finite")
        return Diagonal(total / divisor)
