"""What curvature does to the gradient: products with the gradient of one block after the other.

The product with ``g_c`` alone (all other blocks zero) is a column of block products ``H_bc g_c``:
it gives the cross terms of block ``c`` with all others at once. After all blocks everything that
does not need a trace is exact. Where that costs too much, products with ``sum_b s_b g_b`` for
random signs give unbiased estimates of the same numbers for all blocks together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.curvature.estimates.probes import rademacher
from risegrad.curvature.operators.products import Operator

Tick = Callable[[int], None]


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


@dataclass(frozen=True)
class ExactGradient:
    """Exact terms, as a source that has no draws to leave out."""

    found: GradientTerms
    count: int = 0

    def terms(self) -> GradientTerms:
        """The terms; they are exact."""
        return self.found

    def without(self, draw: int) -> GradientTerms:
        """Always an error, because there are no draws to leave out."""
        raise IndexError(f"exact terms have no draw {draw}")


def exact_gradient_terms(operator: Operator, g: Tensor, h: Tensor, tick: Tick) -> ExactGradient:
    """One product per block; ``Hg`` and ``Hm`` are sums of them. Memory: a few vectors."""
    space = operator.space
    count = len(space.blocks)
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
    # Rounding leaves g_b'H_bc g_c and g_c'H_cb g_b different in their last digits.
    cross = (cross + cross.mT) / 2
    dots = space.block_dots
    return ExactGradient(
        GradientTerms(
            g2=dots(g, g), cross=cross, pulls=pulls,
            rows_fo=dots(g, whole), rows_mean=dots(g, mean),
            mean_sq=dots(mean, mean), mean_own=dots(mean, own),
            past_g=dots(h, g), past_sq=dots(h, h),
            past_mean=dots(h, mean), past_own=dots(h, own),
        )
    )  # fmt: skip


@dataclass(frozen=True)
class SignedGradient:
    """Estimates from ``K`` products ``y = H sum_b s_b g_b`` with independent random signs.

    ``s_c g_b'y_b`` averages to ``g_b'H_bc g_c``. Squares are averaged over pairs of different
    products, ``s_c s_c' y_b'y_b'``: one product alone would square the noise of the other blocks.
    """

    signs: Tensor
    """(K, B)"""
    along: Tensor
    """``g_b'y_b`` (K, B)"""
    on_mean: Tensor
    """``(Hm)_b'y_b`` (K, B)"""
    on_past: Tensor
    """``h_b'y_b`` (K, B)"""
    gram: Tensor
    """``y_b'y_b'`` between products (B, K, K), the diagonal zero"""
    exact: GradientTerms
    """What two more products gave exactly; its estimated fields are empty."""

    @property
    def count(self) -> int:
        """How many sign vectors were drawn."""
        return len(self.signs)

    def terms(self) -> GradientTerms:
        """The terms, averaged over all draws."""
        return self._averaged(torch.ones(self.count, dtype=torch.bool))

    def without(self, draw: int) -> GradientTerms:
        """The terms without one draw, for the jackknife."""
        kept = torch.ones(self.count, dtype=torch.bool)
        kept[draw] = False
        return self._averaged(kept)

    def _averaged(self, kept: Tensor) -> GradientTerms:
        signs, k = self.signs[kept], int(kept.sum())
        cross = self.along[kept].mT @ signs / k
        gram = self.gram[:, kept][:, :, kept]
        pulls = torch.einsum("bkl,kc,lc->bc", gram, signs, signs) / (k * (k - 1))
        e = self.exact
        return GradientTerms(
            g2=e.g2, cross=(cross + cross.mT) / 2, pulls=pulls,
            rows_fo=e.rows_fo, rows_mean=e.rows_mean, mean_sq=e.mean_sq,
            mean_own=(signs * self.on_mean[kept]).mean(0),
            past_g=e.past_g, past_sq=e.past_sq, past_mean=e.past_mean,
            past_own=(signs * self.on_past[kept]).mean(0),
        )  # fmt: skip


def signed_gradient_terms(
    operator: Operator, g: Tensor, h: Tensor, count: int, seed: int, tick: Tick
) -> SignedGradient:
    """``count`` signed products and two plain ones. Memory: ``count`` vectors."""
    if count < 3:
        raise ValueError(f"signed products must be at least 3, got {count}")
    space, dots = operator.space, operator.space.block_dots
    empty = torch.zeros(0, dtype=torch.float64)
    plain = torch.stack([g, space.spread(space.numbers("mean_factor")) * g], dim=1)
    whole, mean = (operator @ plain).unbind(1)
    tick(2)
    exact = GradientTerms(
        g2=dots(g, g), cross=empty, pulls=empty,
        rows_fo=dots(g, whole), rows_mean=dots(g, mean), mean_sq=dots(mean, mean), mean_own=empty,
        past_g=dots(h, g), past_sq=dots(h, h), past_mean=dots(h, mean), past_own=empty,
    )  # fmt: skip
    signs = rademacher(len(space.blocks), range(count), seed, torch.float64).mT
    images = []
    for part in torch.split(signs, operator.columns):
        images.append(operator @ torch.stack([space.spread(row) * g for row in part], dim=1))
        tick(len(part))
    y = torch.cat(images, dim=1)
    along, on_mean, on_past = (
        torch.stack([dots(v, y[:, k]) for k in range(count)]) for v in (g, mean, h)
    )
    gram = torch.stack([(y[b.at].mT @ y[b.at]).double().cpu() for b in space.blocks])
    gram.diagonal(dim1=1, dim2=2).zero_()
    return SignedGradient(signs, along, on_mean, on_past, gram, exact)
