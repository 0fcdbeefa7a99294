"""Parameter groups with blocks and learning rates of their own, as one problem with one rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from torch import Tensor

from risegrad.curvature.products import Operator
from risegrad.curvature.space import Block, Space


def joined(spaces: Sequence[Space]) -> Space:
    """Several spaces one after the other."""
    blocks: list[Block] = []
    for space in spaces:
        start = blocks[-1].stop if blocks else 0
        blocks += [replace(b, start=b.start + start) for b in space.blocks]
    return Space(
        tuple(name for space in spaces for name in space.names),
        tuple(shape for space in spaces for shape in space.shapes),
        tuple(blocks), spaces[0].dtype, spaces[0].device,
        {name: rows for space in spaces for name, rows in space.rows_left_out.items()},
    )  # fmt: skip


@final
class ScaledOperator(Operator):
    """``R H R`` for one positive number per block: where groups have learning rates of their own.

    With ``theta = R phi`` a step of plain descent in ``phi`` moves each group by its own rate.
    """

    def __init__(self, of: Operator, scale: Tensor) -> None:
        super().__init__(of.space, of.columns)
        self.of, self.scale = of, of.space.spread(scale)[:, None]

    def _multiply(self, vectors: Tensor) -> Tensor:
        return self.scale * (self.of @ (self.scale * vectors))

    def rated(self, x: Tensor) -> Tensor:
        """``R x``: what is not made of a gradient, such as Adam's signs, is not scaled yet."""
        return self.scale[:, 0] * x

    @property
    def parts(self) -> int:
        """As many as the operator inside has."""
        return self.of.parts

    def bends(self, columns: Tensor, parts: Sequence[int] | None = None) -> Tensor:
        """Those of the operator inside."""
        before = self.of.products
        found = self.of.bends(self.scale * columns, parts)
        self.products += self.of.products - before
        return found
