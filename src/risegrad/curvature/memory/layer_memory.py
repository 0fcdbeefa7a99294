"""What is kept of one layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from risegrad.curvature.memory.covered_layers import MAPS, sizes_of
from risegrad.curvature.memory.memory_side import Side

PARTS = {"norm": ("weight", "bias")} | dict.fromkeys(MAPS, ("inputs", "outputs"))
"""A map has the second moments S of its inputs and D of the gradients at its outputs, and its
curvature is ``S (x) D``; a norm has the squares of its weight's and of its bias's gradients."""


@dataclass(frozen=True)
class LayerMemory:
    """The curvature of one layer per prediction, times the ``weight`` of what was remembered.

    ``S`` is a mean over rows, ``D`` a sum over rows per prediction. Of several memories ``S`` is
    the mean and ``D`` the sum: their product is a product of sums, and the same memory twice is
    the memory with twice the weight.
    """

    kind: str
    shape: tuple[int, ...]
    """Of the weight, as the layer stores it."""
    parts: Mapping[str, Side]
    examples: int
    predictions: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in PARTS:
            raise ValueError(f"kind must be one of {', '.join(PARTS)}; got {self.kind!r}")
        wanted = dict(zip(PARTS[self.kind], sizes_of(self.kind, self.shape), strict=True))
        came = {name: side.dim for name, side in self.parts.items()}
        if came != wanted:
            raise ValueError(
                f"a {self.kind} layer of shape {self.shape} needs factors of size {wanted}, "
                f"got {came}"
            )

    @property
    def inputs(self) -> Side:
        """``S``: of a norm, the squares of its weight's gradients."""
        return self.parts[PARTS[self.kind][0]]

    @property
    def outputs(self) -> Side:
        """``D``: of a norm, the squares of its bias's gradients."""
        return self.parts[PARTS[self.kind][1]]

    @property
    def bytes(self) -> int:
        """The memory that all sides take."""
        return sum(side.bytes for side in self.parts.values())

    def effective_dimension(self, damping: float) -> float:
        """Of the filter as it acts, side by side: the product of both sides' dimensions."""
        found = [side.effective_dimension(damping) for side in self.parts.values()]
        return found[0] if self.kind == "norm" else found[0] * found[1]

    def plus(self, other: LayerMemory) -> LayerMemory:
        """The memory of both together; inputs are averaged by weight, the rest adds up."""
        if (self.kind, self.shape) != (other.kind, other.shape):
            raise ValueError(
                f"{self.kind} of shape {self.shape} and {other.kind} of shape {other.shape}"
            )
        total = self.weight + other.weight
        parts = {name: side.plus(other.parts[name]) for name, side in self.parts.items()}
        if self.kind != "norm":
            mean = self.inputs.scaled(self.weight / total)
            parts["inputs"] = mean.plus(other.inputs, other.weight / total)
        return replace(
            self,
            parts=parts,
            examples=self.examples + other.examples,
            predictions=self.predictions + other.predictions,
            weight=total,
        )

    def scaled(self, by: float) -> LayerMemory:
        """The same memory counted ``by`` times."""
        parts = dict(self.parts)
        for name in parts:
            if name != "inputs":
                parts[name] = parts[name].scaled(by)
        return replace(self, parts=parts, weight=self.weight * by)

    def grown(self, shape: tuple[int, ...]) -> LayerMemory:
        """The same for a linear layer that has new outputs behind its old ones."""
        if self.kind != "linear" or shape == self.shape:
            return self
        outputs = self.outputs.grown(sizes_of(self.kind, shape)[1])
        return replace(self, shape=shape, parts={**self.parts, "outputs": outputs})

    def changed(self, change: Callable[[str, Side], Side]) -> LayerMemory:
        """A copy with each side replaced by ``change(name, side)``."""
        return replace(self, parts={name: change(name, side) for name, side in self.parts.items()})

    def matrix(self, weight: Tensor) -> Tensor:
        """A weight of this layer (or a change of it) as the matrix (outputs, inputs)."""
        if self.kind in ("conv1d", "embedding"):
            return weight.T
        return weight.flatten(1)

    def damage(self, change: Tensor) -> Tensor:
        """``tr(D dW S dW')/2`` for a change of the weight in its own shape; differentiable."""
        if self.kind == "norm":
            return half_quadratic(self.inputs, change[:, None])
        moved = self.matrix(change)
        turned = self.inputs.product(moved.T).T
        return (self.outputs.product(moved) * turned).sum() / 2

    def bias_damage(self, change: Tensor) -> Tensor:
        """``db' D db / 2``."""
        return half_quadratic(self.outputs, change[:, None])

    def pair_damage(self, up: Tensor, down: Tensor) -> Tensor:
        """The damage of ``dW = up @ down`` (in the layout of ``matrix``), without forming it."""
        left = up.T.to(self.outputs.like) @ self.outputs.product(up)
        right = self.inputs.product(down.T).T @ down.T.to(self.inputs.like)
        return (left * right).sum() / 2


def half_quadratic(side: Side, columns: Tensor) -> Tensor:
    """``1/2 sum_i c_i^T S c_i`` over the columns ``c_i``."""
    return (columns.to(side.like) * side.product(columns)).sum() / 2
