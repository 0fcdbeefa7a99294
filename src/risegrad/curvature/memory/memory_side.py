"""One side of a layer's curvature: a symmetric matrix without negative eigenvalues.

Every filter looks at ``F/t``, with ``t`` the mean eigenvalue: so a damping means the same for every
layer, whatever its scale.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from risegrad.common.checks import check_number


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
