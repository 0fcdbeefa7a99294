"""Predicted damage of each rule and the scores of each block, from scalars that products give.

All of it holds for the local quadratic model ``change = -eta h'x + (eta^2/2) x'Hx`` of a step
``-eta x``: ``x = g`` for FO, ``A g`` for scaled FO, random for RISE and covariance noise. The
second term is the damage ``Q``; the first vanishes where the historical loss is at its minimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from risegrad.curvature.estimates.estimated import Numbers
from risegrad.curvature.estimates.gradient_terms import GradientTerms
from risegrad.curvature.estimates.probe_terms import ProbeTerms
from risegrad.curvature.operators.parameter_space import Space
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


@dataclass(frozen=True)
class Couplings:
    """``tr(H_bc C_c H_cb C_b)`` with ``C = (gg' + |g|^2 I)/n``, of blocks with themselves (B)...

    ... and in ``total`` over all pairs. ``pairs`` (B, B) is there where pairs are kept; off its
    diagonal stand the squares of the summands of the score ``C_b``.
    """

    own: Tensor
    total: Tensor
    pairs: Tensor | None = None

    @staticmethod
    def of(g: GradientTerms, p: ProbeTerms, c: Calibration) -> Couplings:
        """From the pairs, or from their sums."""
        if g.sums is None or p.weighted is None:
            single = g.g2[:, None] * g.pulls
            full = g.cross.square() + single + single.mT + g.g2[:, None] * g.g2 * p.norms
            pairs = full / (c.n[:, None] * c.n)
            return Couplings(pairs.diagonal(), pairs.sum(), pairs)
        own = (g.ghg.square() + 2 * g.g2 * g.hg2 + g.g2.square() * p.own) / c.n.square()
        return Couplings(own, g.sums.cross + 2 * g.sums.pulls + p.weighted)


def _quadratic_variance(
    g: GradientTerms, p: ProbeTerms, c: Calibration, coupled: Couplings
) -> Tensor:
    """``Var[x'Hx/2]`` of RISE: blocks' own scatter, drift and mixed, and half of the couplings."""
    ghg, hg2 = g.ghg, g.hg2
    own = damage_moments_from_scalars(ghg, hg2, p.trace, p.own, g.g2, d=c.d, q=c.q).variance
    # r_b = (Hm)_b - a_b H_bb g_b: what the mean of the other blocks exerts on this one.
    pull = Pull(g.rows_mean - c.a * ghg, g.mean_own - c.a * hg2)
    length = g.mean_sq - 2 * c.a * g.mean_own + c.a**2 * hg2
    drift = (pull.on_g**2 + g.g2 * length) / c.n
    mixed = covariance_from_scalars(ghg, p.trace, g.g2, pull, c)
    return (own + drift + mixed).sum() + (coupled.total - coupled.own.sum()) / 2


def _past_covariance(g: GradientTerms, p: ProbeTerms, c: Calibration) -> Tensor:
    """``Cov[h'x, x'Hx/2]`` of RISE, by blocks."""
    ghg = g.ghg
    own = covariance_from_scalars(ghg, p.trace, g.g2, Pull(g.past_g, g.past_own), c) / 2
    on_g = g.rows_mean - c.a * ghg
    on_past = g.past_mean - c.a * g.past_own
    return own + (g.past_g * on_g + g.g2 * on_past) / c.n


def evaluate(g: GradientTerms, p: ProbeTerms, c: Calibration, eta: float) -> Numbers:
    """Everything the diagnosis reports, as float64 vectors (one entry per block) and totals."""
    half, ghg = eta**2 / 2, g.ghg
    fo = half * g.rows_fo.sum()
    matched = half * (c.a * g.rows_mean).sum()
    residual = half * (ghg + g.g2 * p.trace) / c.n
    coupled = Couplings.of(g, p, c)
    variance = _quadratic_variance(g, p, c, coupled)
    past_variance = ((g.past_g**2 + g.g2 * g.past_sq) / c.n).sum()
    covariance = _past_covariance(g, p, c).sum()
    change = eta**2 * past_variance - eta**3 * 2 * covariance + eta**4 * variance
    gaussian = coupled.total / 2 + ((g.rows_mean**2 + g.g2 * g.mean_sq) / c.n).sum()
    rise = matched + residual.sum()
    isotropic = fo + half * (g.g2 * (c.d + 1) / (c.d * c.n) * p.trace).sum()
    # At equal first-order progress, in parts of FO's damage: 1/Gamma of theory.efficiency.
    slower = (g.g2.sum() / (c.a * g.g2).sum()) ** 2
    linear_fo, linear_mean = -eta * g.past_g.sum(), -eta * (c.a * g.past_g).sum()
    return {
        **_block_scores(g, p, c, eta, coupled.pairs),
        "damage.fo": fo,
        "damage.scaled_fo": matched,
        "damage.rise": rise,
        "damage.rise_std": _root(eta**4 * variance),
        "damage.covariance_noise_std": _root(eta**4 * gaussian),
        "damage.isotropic_noise": isotropic,
        "share.scaled_fo": slower * matched / fo,
        "share.rise": slower * rise / fo,
        "share.isotropic_noise": isotropic / fo,
        "gap.total": fo - rise,
        "gap.within": gap_from_scalars(ghg, p.trace, g.g2, d=c.d, q=c.q, eta=eta).sum(),
        "progress_cost": rise - matched,
        "linear.fo": linear_fo,
        "linear.scaled_fo": linear_mean,
        "change.fo": linear_fo + fo,
        "change.scaled_fo": linear_mean + matched,
        "change.rise": linear_mean + rise,
        "change.rise_std": _root(change),
        "trace": p.trace.sum(),
        "trace_sq": p.trace_sq,
        "lambda_dir": g.rows_fo.sum() / g.g2.sum(),
        "lambda_avg": p.trace.sum() / c.d.sum(),
    }


def _block_scores(
    g: GradientTerms, p: ProbeTerms, c: Calibration, eta: float, pairs: Tensor | None
) -> Numbers:
    """Scores of Appendix C; the directional ones are NaN where a block has no gradient."""
    ghg = g.ghg
    along, average = ghg / g.g2, p.trace / c.d
    return {
        **({} if pairs is None else _coupling_scores(pairs, p.norms, eta)),
        "block.lambda_dir": along,
        "block.lambda_avg": average,
        "block.excess": along - average,
        "block.S": gap_from_scalars(ghg, p.trace, g.g2, d=c.d, q=c.q, eta=eta),
        "block.fo": eta**2 / 2 * g.rows_fo,
        "block.ghg": ghg,
        "block.hg2": g.hg2,
        "block.trace": p.trace,
        "block.trace_sq": p.own,
    }


def _coupling_scores(pairs: Tensor, norms: Tensor, eta: float) -> Numbers:
    coupled, raw = _root(pairs), _root(norms)
    return {
        "block.C": eta**2 * (coupled.sum(1) - coupled.diagonal()),
        "block.raw_C": raw.sum(1) - raw.diagonal(),
    }


def _root(square: Tensor) -> Tensor:
    """A root of an estimated square, which may come out below zero."""
    return square.clamp_min(0).sqrt()


def less_damage_probability(mean: float, std: float, bound: float, positive: bool) -> float:
    """``P(Q < bound)`` for a damage of this mean and deviation, by a law matched to both.

    A gamma law where damage cannot be negative (Satterthwaite's choice for sums of squares), a
    normal one otherwise.
    """
    if std <= 0 or (positive and mean <= 0):
        return float(mean < bound)
    if not positive:
        return float(torch.special.ndtr(torch.tensor((bound - mean) / std, dtype=torch.float64)))
    if bound <= 0:
        return 0.0
    shape = torch.tensor((mean / std) ** 2, dtype=torch.float64)
    scaled = torch.tensor(bound * mean / std**2, dtype=torch.float64)
    return float(torch.special.gammainc(shape, scaled))
