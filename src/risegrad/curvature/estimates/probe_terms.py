"""Traces of all blocks and norms of all couplings, from one set of probes.

A probe ``z`` is random on every block at once, so that its product ``y = Hz`` serves all of them:

- ``z_b'y_b`` averages to ``tr H_bb``: the other blocks' signs are independent of ``z_b``;
- for two probes ``(z_b . y'_b) (z'_c . y_c)`` averages to ``|H_bc|_F^2``, ``tr H_bb^2`` for c = b.
  ``K`` probes make ``K (K-1)`` such pairs, so the error falls nearly as ``1/K``.

Each block's part of a probe is scaled to the exposure that RISE gives the block, because then the
sums over blocks that the predictions need have the least noise: between two blocks it enters with
the geometric mean of their weights, and with plain probes with the arithmetic one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from risegrad.curvature.estimates.gradient_terms import Tick
from risegrad.curvature.estimates.probes import rademacher
from risegrad.curvature.operators.parameter_space import Space
from risegrad.curvature.operators.products import Operator

FLOOR = 0.1
"""A block's scale is at least this part of their root mean square, or its trace would be noise."""


@dataclass(frozen=True)
class ProbeTerms:
    """``tr H_bb`` (B) and ``|H_bc|_F^2`` (B, B), with ``tr H_bb^2`` on its diagonal.

    Of many blocks the diagonal alone (B), and sums over all pairs.
    """

    trace: Tensor
    norms: Tensor
    weighted: Tensor | None = None
    """``sum_bc w_b w_c |H_bc|_F^2`` with the weights that the totals have"""
    whole: Tensor | None = None
    """``sum_bc |H_bc|_F^2``"""

    @property
    def own(self) -> Tensor:
        """``tr H_bb^2`` (B)"""
        return self.norms if self.norms.ndim == 1 else self.norms.diagonal()

    @property
    def trace_sq(self) -> Tensor:
        """``tr H^2`` of all blocks together."""
        return self.norms.sum() if self.whole is None else self.whole


@dataclass
class Probes:
    """Probe products, reduced to block-wise numbers ``M_b[l, k] = z_b^l . y_b^k`` by groups."""

    scales: Tensor
    """(B)"""
    weights: Tensor | None = None
    """Of the totals, ``|g_b|^2/n_b`` (B); given for many blocks, whose pairs are not kept."""
    groups: list[Tensor] = field(default_factory=list)
    """(B, G, G) each; pairs are formed inside a group, so that memory is bounded"""
    _pairs: list[Tensor] = field(default_factory=list)
    """``sum_{k != l} M_b[l, k] M_c[k, l]`` (B, B) of each group"""

    @property
    def count(self) -> int:
        """How many probes there are."""
        return sum(group.shape[-1] for group in self.groups)

    @property
    def _pair_count(self) -> int:
        return sum(group.shape[-1] * (group.shape[-1] - 1) for group in self.groups)

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
        if self.weights is None:
            crossed = _without_diagonal(self.groups[-1])
            self._pairs.append(torch.einsum("blk,ckl->bc", crossed, crossed))

    def terms(self) -> ProbeTerms:
        """The terms from all probes."""
        if self.weights is not None:
            return self._summed(None, 0)
        return self._scaled(self._traces(), sum(self._pairs, torch.zeros(1)), self.count)

    def without(self, draw: int) -> ProbeTerms:
        """The terms without one probe, for the jackknife."""
        for group in self.groups:
            size = group.shape[-1]
            if draw < size:
                break
            draw -= size
        if self.weights is not None:
            return self._summed(group, draw)
        crossed = _without_diagonal(group)
        removed = crossed[:, :, draw] @ crossed[:, draw, :].mT
        pairs = sum(self._pairs, torch.zeros(1)) - removed - removed.mT
        traces = self._traces() - group[:, draw, draw]
        return self._scaled(traces, pairs, self.count - 1, lost=2 * (size - 1))

    def _summed(self, short: Tensor | None, draw: int) -> ProbeTerms:
        """Of many blocks; ``short`` is the group that ``draw`` is left out of."""
        weight = self.scales.square()
        assert self.weights is not None
        trace, own = torch.zeros_like(weight), torch.zeros_like(weight)
        sums, count, pairs = torch.zeros(2, dtype=torch.float64), 0, 0
        for group in self.groups:
            kept = torch.arange(group.shape[-1])
            found = group if group is not short else group[:, kept != draw][:, :, kept != draw]
            size = found.shape[-1]
            count, pairs = count + size, pairs + size * (size - 1)
            trace += found.diagonal(dim1=1, dim2=2).sum(-1)
            crossed = _without_diagonal(found)
            own += (crossed * crossed.mT).sum((1, 2))
            for place, by in enumerate((self.weights / weight, 1 / weight)):
                whole = torch.einsum("b,blk->lk", by, crossed)
                sums[place] += (whole * whole.mT).sum()
        own, sums = own / pairs / weight.square(), sums / pairs
        return ProbeTerms(trace / count / weight, own, sums[0], sums[1])

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
        norms = pairs / (self._pair_count - lost) / weight / weight[:, None]
        return ProbeTerms(traces / count / weight, norms)


def _without_diagonal(group: Tensor) -> Tensor:
    return group - torch.diag_embed(group.diagonal(dim1=1, dim2=2))


def exposure_scales(space: Space, g2: Tensor) -> Tensor:
    """``|g_b|/sqrt(q_b+d_b+1)``, the deviation RISE gives a coordinate, from a floor upwards."""
    spread = (g2 / (space.numbers("q") + space.numbers("d") + 1)).sqrt()
    least = FLOOR * spread.square().mean().sqrt()
    # All gradients zero: every block is as good as any other.
    return spread.clamp_min(least) if least > 0 else torch.ones_like(spread)


def group_sizes(total: int, most: int) -> Iterator[int]:
    """Groups of about equal size, at most ``most`` and at least 3 where that is possible.

    >>> list(group_sizes(20, 16)), list(group_sizes(5, 16))
    ([10, 10], [5])
    """
    parts = -(-total // most)
    for part in range(parts):
        yield total // parts + (part < total % parts)
