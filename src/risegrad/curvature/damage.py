"""What a random step is expected to do, and how many products it costs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from risegrad.curvature.estimates import Estimate, GradientTerms, Numbers, ProbeTerms
from risegrad.curvature.space import Space
from risegrad.theory import damage_moments_from_scalars, gap_from_scalars


@dataclass(frozen=True)
class Calibration:
    """``d``, ``q``, ``tau``, ``a`` of every block as float64 vectors, and ``n = q + d + 1``."""

    d: Tensor
    q: Tensor
    tau: Tensor
    a: Tensor

    @property
    def n(self) -> Tensor:
        """``q + d + 1`` of each block."""
        return self.q + self.d + 1

    @staticmethod
    def of(space: Space) -> Calibration:
        """The calibration of the blocks of a space."""
        return Calibration(*map(space.numbers, ("d", "q", "tau", "mean_factor")))


class Pull(NamedTuple):
    """A fixed vector ``r`` that meets a block's ``x``: ``r.g`` and ``r.(Hg)``."""

    on_g: Tensor
    on_hg: Tensor


def covariance_from_scalars(
    ghg: Tensor, trace: Tensor, g2: Tensor, pull: Pull, c: Calibration
) -> Tensor:
    """``Cov[x'Hx, r'x]`` of a shaped block: ``theory.quadratic_linear_covariance`` from scalars.

    ``(q n)^(-3/2) (4 s_2 ghg rho + 2q (g2 rho tr H - ghg rho) + 2 s_2 (g2 (Hg.r) - ghg rho))`` with
    ``rho = g.r`` and ``s_2 = q (q + 2)``.
    """
    both, s2 = ghg * pull.on_g, c.q * (c.q + 2)
    spread = 2 * c.q * (g2 * pull.on_g * trace - both) + 2 * s2 * (g2 * pull.on_hg - both)
    result: Tensor = (4 * s2 * both + spread) * (c.q * c.n) ** -1.5
    return result


def couplings(g: GradientTerms, p: ProbeTerms, c: Calibration) -> Tensor:
    """``tr(H_bc C_c H_cb C_b)`` with ``C = (gg' + |g|^2 I)/n`` (B, B).

    Off its diagonal stand the squares of the summands of the score ``C_b``.
    """
    single = g.g2[:, None] * g.pulls
    full = g.cross.square() + single + single.mT + g.g2[:, None] * g.g2 * p.norms
    return full / (c.n[:, None] * c.n)


def _quadratic_variance(g: GradientTerms, p: ProbeTerms, c: Calibration, pairs: Tensor) -> Tensor:
    """``Var[x'Hx/2]`` of RISE: blocks' own scatter, drift and mixed, and half of the couplings."""
    ghg, hg2 = g.ghg, g.hg2
    own = damage_moments_from_scalars(
        ghg, hg2, p.trace, p.norms.diagonal(), g.g2, d=c.d, q=c.q
    ).variance
    # r_b = (Hm)_b - a_b H_bb g_b: what the mean of the other blocks exerts on this one.
    pull = Pull(g.rows_mean - c.a * ghg, g.mean_own - c.a * hg2)
    length = g.mean_sq - 2 * c.a * g.mean_own + c.a**2 * hg2
    drift = (pull.on_g**2 + g.g2 * length) / c.n
    mixed = covariance_from_scalars(ghg, p.trace, g.g2, pull, c)
    return (own + drift + mixed).sum() + (pairs.sum() - pairs.diagonal().sum()) / 2


def _past_covariance(g: GradientTerms, p: ProbeTerms, c: Calibration) -> Tensor:
    """``Cov[h'x, x'Hx/2]`` of RISE, by blocks."""
    ghg = g.ghg
    own = covariance_from_scalars(ghg, p.trace, g.g2, Pull(g.past_g, g.past_own), c) / 2
    on_g = g.rows_mean - c.a * ghg
    on_past = g.past_mean - c.a * g.past_own
    return own + (g.past_g * on_g + g.g2 * on_past) / c.n


def evaluate(g: GradientTerms, p: ProbeTerms, c: Calibration, eta: float) -> Numbers:
    """The fields of ``Totals``, and the scores of each block (float64, one entry per block)."""
    half, ghg = eta**2 / 2, g.ghg
    fo = half * g.rows_fo.sum()
    matched = half * (c.a * g.rows_mean).sum()
    residual = half * (ghg + g.g2 * p.trace) / c.n
    pairs = couplings(g, p, c)
    variance = _quadratic_variance(g, p, c, pairs)
    past_variance = ((g.past_g**2 + g.g2 * g.past_sq) / c.n).sum()
    covariance = _past_covariance(g, p, c).sum()
    change = eta**2 * past_variance - eta**3 * 2 * covariance + eta**4 * variance
    gaussian = pairs.sum() / 2 + ((g.rows_mean**2 + g.g2 * g.mean_sq) / c.n).sum()
    rise = matched + residual.sum()
    linear_fo, linear_mean = -eta * g.past_g.sum(), -eta * (c.a * g.past_g).sum()
    return {
        **_block_scores(g, p, c, eta, pairs),
        "fo": fo,
        "scaled_fo": matched,
        "rise": rise,
        "rise_std": _root(eta**4 * variance),
        "covariance_noise_std": _root(eta**4 * gaussian),
        "gap": fo - rise,
        "change_fo": linear_fo + fo,
        "change_scaled_fo": linear_mean + matched,
        "change_rise": linear_mean + rise,
        "change_rise_std": _root(change),
        "lambda_dir": g.rows_fo.sum() / g.g2.sum(),
        "lambda_avg": p.trace.sum() / c.d.sum(),
    }


def _block_scores(
    g: GradientTerms, p: ProbeTerms, c: Calibration, eta: float, pairs: Tensor
) -> Numbers:
    """Scores of Appendix C; the directional ones are NaN where a block has no gradient."""
    coupled, raw = _root(pairs), _root(p.norms)
    return {
        "block.lambda_dir": g.ghg / g.g2,
        "block.lambda_avg": p.trace / c.d,
        "block.S": gap_from_scalars(g.ghg, p.trace, g.g2, d=c.d, q=c.q, eta=eta),
        "block.C": eta**2 * (coupled.sum(1) - coupled.diagonal()),
        "block.raw_C": raw.sum(1) - raw.diagonal(),
        "block.fo": eta**2 / 2 * g.rows_fo,
    }


def _root(square: Tensor) -> Tensor:
    """A root of an estimated square, which may come out below zero."""
    return square.clamp_min(0).sqrt()


@dataclass(frozen=True)
class Bends:
    """``x'Hx`` of one step by batches (P), and the progress ``g'x`` that belongs to it (P)."""

    bends: Tensor
    gains: Tensor

    def price(self, batches: Tensor) -> Tensor:
        """``sum_p x'H_p x/(g'x)^2`` of some batches (bool); twice the damage of unit progress."""
        return (self.bends / self.gains.square())[batches].sum()


@dataclass(frozen=True)
class Priced:
    """One rule beside FO."""

    share: Estimate
    """``1/Gamma``: this rule's damage in parts of FO's at equal progress"""
    gain: Estimate
    """``Gamma = e(x)/e(g)``: FO's damage over this rule's at equal progress"""
    efficiency: Estimate
    """``e = (g'x)^2/x'Hx``"""


def priced(rule: Bends, fo: Bends) -> Priced:
    """A rule and FO over the same batches; errors by leaving out one batch after the other."""
    count = len(rule.bends)

    def share(batches: Tensor) -> Tensor:
        return rule.price(batches) / fo.price(batches)

    return Priced(
        share=_estimate(share, count),
        gain=_estimate(lambda batches: 1 / share(batches), count),
        # As if the batches that are counted were all.
        efficiency=_estimate(lambda b: 1 / (rule.price(b) * count / b.sum()), count),
    )


def _estimate(value: Callable[[Tensor], Tensor], count: int) -> Estimate:
    everyone, error = torch.ones(count, dtype=torch.bool), 0.0
    if count > 1:
        left = torch.stack([value(torch.arange(count) != one) for one in range(count)])
        square = (count - 1) / count * (left - left.mean()).square().sum()
        error = square.sqrt().item()
    return Estimate(value(everyone).item(), error, 1)
