"""Scalars of every block from products with the curvature: along the gradient, and random probes.

The product with ``g_c`` alone (all other blocks zero) is a column of block products ``H_bc g_c``:
it gives the cross terms of block ``c`` with all others at once. After all blocks everything that
does not need a trace is exact.

A probe ``z`` is random on every block at once, so that its product ``y = Hz`` serves all of them:

- ``z_b'y_b`` averages to ``tr H_bb``: the other blocks' signs are independent of ``z_b``;
- for two probes ``(z_b . y'_b) (z'_c . y_c)`` averages to ``|H_bc|_F^2``, ``tr H_bb^2`` for c = b.
  ``K`` probes make ``K (K-1)`` such pairs, so the error falls nearly as ``1/K``.

Each block's part of a probe is scaled to the exposure that RISE gives the block, because then the
sums over blocks that the predictions need have the least noise: between two blocks it enters with
the geometric mean of their weights, and with plain probes with the arithmetic one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from risegrad.common.declared_fields import Checked, Limits, PositiveInt
from risegrad.common.settings import read
from risegrad.core.draws import numbered_generator
from risegrad.curvature.operators.parameter_space import Space
from risegrad.curvature.operators.products import Operator

Tick = Callable[[int], None]

LEAST_PROBES = 8
"""Fewer say little about their own error."""
MOST_GROUP = 16
"""Probes held at a time where memory allows more: pairs are formed within a group."""
FLOOR = 0.1
"""A block's scale is at least this part of their root mean square, or its trace would be noise."""
MOST_ASYMMETRY = 0.01
"""Relative: float32 leaves about 1e-4."""


@dataclass(frozen=True)
class ProductBudget(Checked):
    """Settings of cost; one product with the Hessian costs two to four gradients.

    >>> ProductBudget(probes=2)
    Traceback (most recent call last):
    ValueError: probes must be an integer >= 8, got 2
    """

    probes: Annotated[int, Limits(at_least=LEAST_PROBES)] = 64
    """products with random vectors: they give traces and coupling norms of all blocks"""
    columns: PositiveInt = 4
    """vectors multiplied together: they share the forward pass and cost memory each"""
    memory: PositiveInt = 1 << 30
    """bytes for the vectors that are held (the network's own activations come on top)"""

    @staticmethod
    def of(settings: Mapping[str, Any]) -> ProductBudget:
        """From a table of settings; a mistake is named with its key."""
        return read(ProductBudget, settings, "budget")

    def groups(self, space: Space) -> Iterator[int]:
        """Sizes of groups of probes that may be held together, at least 3 where possible."""
        room = self.memory // (2 * space.d * space.dtype.itemsize)
        if room < 3:
            needed = 6 * space.d * space.dtype.itemsize
            raise ValueError(
                f"memory must hold at least six vectors of {space.d:,} numbers, {needed:,} bytes; "
                f"got {self.memory:,}"
            )
        parts = -(-self.probes // min(MOST_GROUP, room))
        for part in range(parts):
            yield self.probes // parts + (part < self.probes % parts)

    def products(self, space: Space) -> int:
        """Products with blocks' gradients and with probes."""
        return self.probes + (len(space.blocks) if space.by_block else 0)


def rademacher(d: int, numbers: Iterable[int], seed: int, dtype: torch.dtype) -> Tensor:
    """Columns (d, K) of independent signs; drawn on the CPU, so the same on every device."""
    columns = []
    for number in numbers:
        generator = numbered_generator(seed, number)
        bits = torch.randint(0, 2, (d,), generator=generator, dtype=torch.int8)
        columns.append((2 * bits - 1).to(dtype))
    return torch.stack(columns, dim=1)


@dataclass(frozen=True)
class GradientTerms:
    """Float64, by blocks; ``m_b = a_b g_b`` is RISE's mean, ``h`` the historical gradient."""

    g2: Tensor
    """``|g_b|^2`` (B)"""
    cross: Tensor
    """``g_b'H_bc g_c`` (B, B)"""
    pulls: Tensor
    """``|H_bc g_c|^2`` (B, B)"""
    rows_fo: Tensor
    """``g_b'(Hg)_b`` (B)"""
    rows_mean: Tensor
    """``g_b'(Hm)_b`` (B)"""
    mean_sq: Tensor
    """``|(Hm)_b|^2`` (B)"""
    mean_own: Tensor
    """``(Hm)_b'H_bb g_b`` (B)"""
    past_g: Tensor
    """``h_b'g_b`` (B)"""
    past_sq: Tensor
    """``|h_b|^2`` (B)"""
    past_mean: Tensor
    """``h_b'(Hm)_b`` (B)"""
    past_own: Tensor
    """``h_b'H_bb g_b`` (B)"""

    @property
    def ghg(self) -> Tensor:
        """``g_b'H_bb g_b`` (B)"""
        return self.cross.diagonal()

    @property
    def hg2(self) -> Tensor:
        """``|H_bb g_b|^2`` (B)"""
        return self.pulls.diagonal()


def gradient_terms(operator: Operator, g: Tensor, h: Tensor, tick: Tick) -> GradientTerms:
    """One product per block; ``Hg`` and ``Hm`` are sums of them. Memory: a few vectors."""
    space, count = operator.space, len(operator.space.blocks)
    cross = torch.zeros(count, count, dtype=torch.float64)
    pulls = torch.zeros_like(cross)
    whole, mean, own = torch.zeros_like(g), torch.zeros_like(g), torch.zeros_like(g)
    for low in range(0, count, operator.columns):
        numbers = range(low, min(low + operator.columns, count))
        columns = torch.zeros(space.d, len(numbers), dtype=space.dtype, device=space.device)
        for place, c in enumerate(numbers):
            columns[space.blocks[c].at, place] = g[space.blocks[c].at]
        products = operator @ columns
        for place, c in enumerate(numbers):
            product, block = products[:, place], space.blocks[c]
            cross[:, c] = space.block_dots(g, product)
            pulls[:, c] = space.block_dots(product, product)
            whole += product
            mean += block.mean_factor * product
            own[block.at] = product[block.at]
        tick(len(numbers))
    dots = space.block_dots
    return GradientTerms(
        g2=dots(g, g),
        # Rounding leaves g_b'H_bc g_c and g_c'H_cb g_b different in their last digits.
        cross=(cross + cross.mT) / 2, pulls=pulls,
        rows_fo=dots(g, whole), rows_mean=dots(g, mean),
        mean_sq=dots(mean, mean), mean_own=dots(mean, own),
        past_g=dots(h, g), past_sq=dots(h, h), past_mean=dots(h, mean), past_own=dots(h, own),
    )  # fmt: skip


@dataclass(frozen=True)
class ProbeTerms:
    """``tr H_bb`` (B) and ``|H_bc|_F^2`` (B, B), with ``tr H_bb^2`` on its diagonal."""

    trace: Tensor
    norms: Tensor
    """empty where blocks are too many for pairs"""


@dataclass
class Probes:
    """Probe products, reduced to block-wise numbers ``M_b[l, k] = z_b^l . y_b^k`` by groups."""

    scales: Tensor
    """(B)"""
    by_pairs: bool = True
    groups: list[Tensor] = field(default_factory=list)
    """(B, G, G) each; pairs are formed inside a group, so that memory is bounded"""
    _pairs: list[Tensor] = field(default_factory=list)
    """``sum_{k != l} M_b[l, k] M_c[k, l]`` (B, B) of each group"""

    @property
    def count(self) -> int:
        """How many probes there are."""
        return sum(group.shape[-1] for group in self.groups)

    def add(self, operator: Operator, count: int, seed: int, tick: Tick) -> None:
        """Spend ``count`` products on a new group of probes. Memory: ``2 count`` vectors."""
        space = operator.space
        numbers = range(self.count, self.count + count)
        z = rademacher(space.d, numbers, seed, space.dtype).to(space.device)
        z *= space.spread(self.scales)[:, None]
        y = torch.empty_like(z)
        for low in range(0, count, operator.columns):
            part = slice(low, low + operator.columns)
            y[:, part] = operator @ z[:, part]
            tick(z[:, part].shape[1])
        blocks = [(z[b.at].mT @ y[b.at]).double().cpu() for b in space.blocks]
        self.groups.append(torch.stack(blocks))
        if self.by_pairs:
            crossed = _without_diagonal(self.groups[-1])
            self._pairs.append(torch.einsum("blk,ckl->bc", crossed, crossed))

    def terms(self) -> ProbeTerms:
        """The terms from all probes."""
        return self._scaled(self._traces(), sum(self._pairs, torch.zeros(1)), self.count)

    def without(self, draw: int) -> ProbeTerms:
        """The terms without one probe, for the jackknife."""
        for group in self.groups:
            size = group.shape[-1]
            if draw < size:
                break
            draw -= size
        traces, pairs = self._traces() - group[:, draw, draw], sum(self._pairs, torch.zeros(1))
        if self.by_pairs:
            crossed = _without_diagonal(group)
            removed = crossed[:, :, draw] @ crossed[:, draw, :].mT
            pairs = pairs - removed - removed.mT
        return self._scaled(traces, pairs, self.count - 1, lost=2 * (size - 1))

    @property
    def asymmetry(self) -> float:
        """``|z'Hw - w'Hz|`` over probes, relative to the largest: rounding, or a wrong product."""
        wholes = [group.sum(0) for group in self.groups]
        worst = max(float((whole - whole.mT).abs().max()) for whole in wholes)
        scale = max(float(whole.abs().max()) for whole in wholes)
        return worst / scale if scale else 0.0

    def _traces(self) -> Tensor:
        return torch.stack([g.diagonal(dim1=1, dim2=2).sum(-1) for g in self.groups]).sum(0)

    def _scaled(self, traces: Tensor, pairs: Tensor, count: int, lost: int = 0) -> ProbeTerms:
        weight = self.scales.square()
        if not self.by_pairs:
            return ProbeTerms(traces / count / weight, torch.empty(0))
        made = sum(group.shape[-1] * (group.shape[-1] - 1) for group in self.groups)
        norms = pairs / (made - lost) / weight / weight[:, None]
        return ProbeTerms(traces / count / weight, norms)


def _without_diagonal(group: Tensor) -> Tensor:
    return group - torch.diag_embed(group.diagonal(dim1=1, dim2=2))


def exposure_scales(space: Space, g2: Tensor) -> Tensor:
    """``|g_b|/sqrt(q_b+d_b+1)``, the deviation RISE gives a coordinate, from a floor upwards."""
    spread = (g2 / (space.numbers("q") + space.numbers("d") + 1)).sqrt()
    least = FLOOR * spread.square().mean().sqrt()
    # All gradients zero: every block is as good as any other.
    return spread.clamp_min(least) if least > 0 else torch.ones_like(spread)


def probed(operator: Operator, g: Tensor, budget: ProductBudget, seed: int, tick: Tick) -> Probes:
    """All probes of a budget; the symmetry of the products is checked by the way."""
    space = operator.space
    probes = Probes(exposure_scales(space, space.block_dots(g, g)), space.by_block)
    for count in budget.groups(space):
        probes.add(operator, count, seed, tick)
        if probes.asymmetry > MOST_ASYMMETRY:
            raise FloatingPointError(
                f"curvature products are not symmetric: z'Hw and w'Hz differ by "
                f"{probes.asymmetry:.1%}; the loss is not deterministic, or an operation of the "
                "model has a wrong second derivative: try curvature='ggn', or float64"
            )
    return probes
