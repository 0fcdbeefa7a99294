"""What curvature does to the gradient: products with the gradient of one block after the other.

The product with ``g_c`` alone (all other blocks zero) is a column of block products ``H_bc g_c``:
it gives the cross terms of block ``c`` with all others at once. After all blocks everything that
does not need a trace is exact. Where that costs too much, products with ``sum_b s_b g_b`` for
random signs give unbiased estimates of the same numbers for all blocks together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from risegrad.curvature.estimates.probes import rademacher
from risegrad.curvature.operators.parameter_space import Space
from risegrad.curvature.operators.products import Operator

Tick = Callable[[int], None]


@dataclass(frozen=True)
class PairSums:
    """What the totals need of all pairs of blocks, with ``n = q + d + 1``."""

    cross: Tensor
    """``sum_bc (g_b'H_bc g_c)^2/(n_b n_c)``"""
    pulls: Tensor
    """``sum_bc |g_b|^2 |H_bc g_c|^2/(n_b n_c)``"""


@dataclass(frozen=True)
class GradientTerms:
    """Float64, by blocks; ``m_b = a_b g_b`` is RISE's mean, ``h`` the historical gradient."""

    g2: Tensor
    """``|g_b|^2`` (B)"""
    cross: Tensor
    """``g_b'H_bc g_c`` (B, B); of many blocks the diagonal alone (B)"""
    pulls: Tensor
    """``|H_bc g_c|^2`` (B, B); of many blocks the diagonal alone (B)"""
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
    sums: PairSums | None = None
    """where the pairs are not kept"""

    @property
    def ghg(self) -> Tensor:
        """``g_b'H_bb g_b`` (B)"""
        return self.cross if self.cross.ndim == 1 else self.cross.diagonal()

    @property
    def hg2(self) -> Tensor:
        """``|H_bb g_b|^2`` (B)"""
        return self.pulls if self.pulls.ndim == 1 else self.pulls.diagonal()


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


class Pairs:
    """The numbers of every pair of blocks, column by column."""

    sums: PairSums | None = None

    def __init__(self, count: int) -> None:
        self._cross = torch.zeros(count, count, dtype=torch.float64)
        self.pulls = torch.zeros_like(self._cross)

    def put(self, c: int, cross: Tensor, pulls: Tensor) -> None:
        """``g_b'H_bc g_c`` and ``|H_bc g_c|^2`` for all b."""
        self._cross[:, c], self.pulls[:, c] = cross, pulls

    @property
    def cross(self) -> Tensor:
        """Rounding leaves g_b'H_bc g_c and g_c'H_cb g_b different in their last digits."""
        return (self._cross + self._cross.mT) / 2


class SummedPairs:
    """The same where there are too many pairs: the diagonals, and what the totals need."""

    def __init__(self, n: Tensor, g2: Tensor) -> None:
        self._n, self._g2 = n, g2
        self.cross, self.pulls = torch.zeros_like(n), torch.zeros_like(n)
        zero = torch.zeros((), dtype=torch.float64)
        self.sums = PairSums(zero, zero)

    def put(self, c: int, cross: Tensor, pulls: Tensor) -> None:
        """``g_b'H_bc g_c`` and ``|H_bc g_c|^2`` for all b."""
        self.cross[c], self.pulls[c] = cross[c], pulls[c]
        self.sums = PairSums(
            self.sums.cross + (cross.square() / self._n).sum() / self._n[c],
            self.sums.pulls + (self._g2 * pulls / self._n).sum() / self._n[c],
        )


def exposed(space: Space) -> Tensor:
    """``n = q + d + 1`` of every block."""
    return space.numbers("q") + space.numbers("d") + 1


def exact_gradient_terms(operator: Operator, g: Tensor, h: Tensor, tick: Tick) -> ExactGradient:
    """One product per block; ``Hg`` and ``Hm`` are sums of them. Memory: a few vectors."""
    space, count = operator.space, len(operator.space.blocks)
    g2 = space.block_dots(g, g)
    pairs = Pairs(count) if space.paired else SummedPairs(exposed(space), g2)
    whole, mean, own = torch.zeros_like(g), torch.zeros_like(g), torch.zeros_like(g)
    for low in range(0, count, operator.columns):
        numbers = range(low, min(low + operator.columns, count))
        columns = torch.zeros(space.d, len(numbers), dtype=space.dtype, device=space.device)
        for place, c in enumerate(numbers):
            columns[space.blocks[c].at, place] = g[space.blocks[c].at]
        products = operator @ columns
        for place, c in enumerate(numbers):
            product, block = products[:, place], space.blocks[c]
            pairs.put(c, space.block_dots(g, product), space.block_dots(product, product))
            whole += product
            mean += block.mean_factor * product
            own[block.at] = product[block.at]
        tick(len(numbers))
    dots = space.block_dots
    return ExactGradient(
        GradientTerms(
            g2=g2, cross=pairs.cross, pulls=pairs.pulls, sums=pairs.sums,
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
    gram: Gram
    """``y_b'y_b'`` between products"""
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
        signs, along = self.signs[kept], self.along[kept]
        cross, pulls, sums = self.gram.averaged(signs, along, kept)
        e = self.exact
        return GradientTerms(
            g2=e.g2, cross=cross, pulls=pulls, sums=sums,
            rows_fo=e.rows_fo, rows_mean=e.rows_mean, mean_sq=e.mean_sq,
            mean_own=(signs * self.on_mean[kept]).mean(0),
            past_g=e.past_g, past_sq=e.past_sq, past_mean=e.past_mean,
            past_own=(signs * self.on_past[kept]).mean(0),
        )  # fmt: skip


Averaged = tuple[Tensor, Tensor, PairSums | None]


class Gram(Protocol):
    """What is kept of the products among each other."""

    def averaged(self, signs: Tensor, along: Tensor, kept: Tensor) -> Averaged:
        """``cross``, ``pulls`` and the sums over pairs, from the products that are ``kept``."""


@dataclass(frozen=True)
class PairGram:
    """``y_b'y_b'`` of every block (B, K, K), the diagonal zero: all pairs of blocks follow."""

    inner: Tensor

    @staticmethod
    def of(y: Tensor, space: Space) -> PairGram:
        """From the products (d, K)."""
        inner = torch.stack([(y[b.at].mT @ y[b.at]).double().cpu() for b in space.blocks])
        inner.diagonal(dim1=1, dim2=2).zero_()
        return PairGram(inner)

    def averaged(self, signs: Tensor, along: Tensor, kept: Tensor) -> Averaged:
        """Both matrices in full."""
        k = len(signs)
        cross = along.mT @ signs / k
        inner = self.inner[:, kept][:, :, kept]
        pulls = torch.einsum("bkl,kc,lc->bc", inner, signs, signs) / (k * (k - 1))
        return (cross + cross.mT) / 2, pulls, None


@dataclass(frozen=True)
class SumGram:
    """What many blocks leave: each block's own part, and sums over blocks for the totals.

    A sum over pairs of blocks is one over pairs of products, ``(sum_b ..)(sum_c ..)``: few numbers.
    """

    n: Tensor
    own: Tensor
    """``s_b y_b . sum s_b' y_b'`` with all other products (K, B)"""
    weighted: Tensor
    """``sum_b |g_b|^2 y_b'y_b'/n_b`` between products (K, K)"""

    @staticmethod
    def of(y: Tensor, space: Space, signs: Tensor, g2: Tensor) -> SumGram:
        """From the products (d, K)."""
        n, dots = exposed(space), space.block_dots
        signed = [space.spread(row) * y[:, k] for k, row in enumerate(signs)]
        total = torch.stack(signed).sum(0)
        own = torch.stack([dots(one, total - one) for one in signed])
        scaled = space.spread((g2 / n).sqrt())[:, None] * y
        return SumGram(n, own, (scaled.mT.double() @ scaled.double()).cpu())

    def averaged(self, signs: Tensor, along: Tensor, kept: Tensor) -> Averaged:
        """The diagonals, and the sums; one product may be left out."""
        k = len(signs)
        # A product that is left out was in two of each of its pairs.
        own = self.own.sum(0) - 2 * self.own[~kept].sum(0)
        shared = (signs / self.n) @ signs.mT
        shared.diagonal().zero_()
        pairs = k * (k - 1)
        crossed, pulled = (along / self.n) @ along.mT, self.weighted[kept][:, kept]
        sums = PairSums((crossed * shared).sum() / pairs, (pulled * shared).sum() / pairs)
        return (signs * along).mean(0), own / pairs, sums


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
    gram = PairGram.of(y, space) if space.paired else SumGram.of(y, space, signs, exact.g2)
    return SignedGradient(signs, along, on_mean, on_past, gram, exact)
