"""The true curvature at work on directions: each rule beside the plain step of the optimizer.

A random rule's mean damage is that of its mean step and that of its noise. The noise is known from
traces that are measured anyway; how it is divided among the batches, one more product tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.core.draws import mix
from risegrad.curvature.estimates.damage_moments import Calibration
from risegrad.curvature.estimates.estimated import Estimate, Numbers, jackknife
from risegrad.curvature.estimates.gradient_terms import GradientTerms, Tick
from risegrad.curvature.estimates.measuring import Measured
from risegrad.curvature.estimates.probe_terms import ProbeTerms
from risegrad.curvature.estimates.probes import rademacher
from risegrad.curvature.estimates.rule_prices import Bends, priced
from risegrad.curvature.operators.products import Operator
from risegrad.foresight.rule_forecast import RuleForecast

OWN_DRAWS = 3
"""Products with randomly signed blocks for ``u_b'H_bb u_b``, which only gradients have already."""


@dataclass(frozen=True)
class NoiseTerms:
    """``E[n'Hn]`` of the noise ``n`` that a rule adds to its mean step."""

    rise: Estimate
    isotropic: Estimate
    by_batch: Tensor
    """its parts by batches (P); they add up to 1"""
    products: int


class Pricing:
    """Products with directions, and the plain step's for comparison."""

    def __init__(
        self, operator: Operator, g: Tensor, h: Tensor, plain: Tensor | None, eta: float, tick: Tick
    ) -> None:
        self.operator, self.g, self.h, self.eta, self.tick = operator, g, h, eta, tick
        self.step = g if plain is None else plain
        self.on = "gradient" if plain is None else "update"
        self.progress = self.gain(self.step)
        self.plain = self.bends(self.step)
        if not bool(self.plain.bends.any()):
            raise ValueError(
                "the historical loss must have curvature along the plain step to compare rules by "
                "their damage, got products that are zero: its predictions may not depend on what "
                "is trained, or be certain beyond what the numbers can tell"
            )

    def gain(self, x: Tensor) -> float:
        """First-order progress, ``g'x``."""
        return torch.dot(self.g.double(), x.double()).item()

    def pull(self, x: Tensor, past: Tensor | None = None) -> float:
        """``h'x`` per unit of progress; ``past``: the part of ``h`` that counts."""
        h = self.h if past is None else past
        return torch.dot(h.double(), x.double()).item() / self.gain(x)

    def bends(self, x: Tensor) -> Bends:
        """One product."""
        bends = self.operator.bends(x[:, None])
        self.tick(1)
        return Bends.of(bends, torch.tensor([self.gain(x)], dtype=torch.float64))

    def shortened(self) -> Tensor:
        """RISE's mean: the plain step, each block times its mean factor."""
        space = self.operator.space
        return space.spread(space.numbers("mean_factor")) * self.step

    def forecast(self, name: str, found: Bends, pull: float, products: int = 0) -> RuleForecast:
        """A rule from its products, and from the historical gradient along it."""
        rule = priced(found, self.plain)
        damage = self.eta**2 / 2 * found.bends.sum(0).mean().item()
        return self._changed(RuleForecast(
            name, rule.share, rule.gain, rule.efficiency, Estimate(damage),
            found.gains.mean().item() / self.progress, products=products, on=self.on,
        ), pull)  # fmt: skip

    def _changed(self, rule: RuleForecast, pull: float) -> RuleForecast:
        """With the change of the loss; it takes no product."""
        linear = Estimate(-self.eta * self.progress * pull)
        return rule.changing(linear, self.eta**2 / 2 * self.plain.bends.sum().item())

    def noisy(
        self, name: str, mean: Bends, pull: float, noise: Estimate, by_batch: Tensor
    ) -> RuleForecast:
        """A rule from the products with its mean and the damage of its noise.

        Errors are over batches, and over the probes that gave the noise.
        """
        whole = Bends(mean.bends + noise.value * by_batch[:, None], mean.gains)
        rule, bend = priced(whole, self.plain), whole.bends.sum().item()
        rough = noise.error / abs(bend) if bend else 0.0

        def with_noise(found: Estimate) -> Estimate:
            error = math.hypot(found.error, abs(found.value) * rough)
            return Estimate(found.value, error, noise.products)

        half = self.eta**2 / 2
        return self._changed(RuleForecast(
            name, with_noise(rule.share), with_noise(rule.gain), with_noise(rule.efficiency),
            Estimate(half * bend, half * noise.error, noise.products),
            mean.gains.mean().item() / self.progress, on=self.on,
        ), pull)  # fmt: skip

    def noise(self, measured: Measured, seed: int) -> NoiseTerms:
        """RISE scatters by ``(u_b u_b' + |u_b|^2 I)/n_b``, isotropic noise without the first."""
        before = self.operator.products
        c = Calibration.of(self.operator.space)
        u2 = self.operator.space.block_dots(self.step, self.step)
        plain = self.on == "gradient"

        def formula(g: GradientTerms, p: ProbeTerms) -> Numbers:
            own = g.ghg if plain else torch.zeros_like(u2)
            even = u2 * p.trace
            return {
                "rise": ((own + even) / c.n).sum(),
                "isotropic": (even * (c.d + 1) / (c.d * c.n)).sum(),
            }

        values, errors = jackknife(formula, [measured.gradient, measured.probes])
        own = Estimate(0.0) if plain else self._own_noise(c, mix(seed, 8))
        rise = Estimate(
            values["rise"].item() + own.value, math.hypot(errors["rise"].item(), own.error),
            measured.probes.count,
        )  # fmt: skip
        even = Estimate(
            values["isotropic"].item(), errors["isotropic"].item(), measured.probes.count
        )
        by_batch = self._noise_by_batch(c, u2, mix(seed, 9))
        return NoiseTerms(rise, even, by_batch, self.operator.products - before)

    def _own_noise(self, c: Calibration, seed: int) -> Estimate:
        """``sum_b u_b'H_bb u_b/n_b``: blocks with random signs do not see each other on average."""
        drawn = rademacher(len(c.d), range(OWN_DRAWS), seed, torch.float64).mT / c.n.sqrt()
        spread = self.operator.space.spread
        bends = self.operator.bends(torch.stack([spread(row) * self.step for row in drawn], 1))
        self.tick(OWN_DRAWS)
        found = bends.sum(0)
        return Estimate(found.mean().item(), found.std().item() / OWN_DRAWS**0.5, OWN_DRAWS)

    def _noise_by_batch(self, c: Calibration, u2: Tensor, seed: int) -> Tensor:
        """One draw of RISE's noise, a batch at a time; nothing to divide with one batch."""
        count = self.operator.parts
        even = torch.full((count,), 1 / count, dtype=torch.float64)
        if count == 1:
            return even
        space = self.operator.space
        blocks = rademacher(len(c.d), [0], seed, torch.float64)[:, 0] / c.n.sqrt()
        entries = rademacher(space.d, [1], seed, space.dtype)[:, 0].to(space.device)
        draw = space.spread(blocks) * self.step + space.spread((u2 / c.n).sqrt()) * entries
        found = self.operator.bends(draw[:, None])[:, 0]
        self.tick(1)
        # Where curvature may be negative, parts of a sum that may vanish say nothing.
        return found / found.sum() if bool((found >= 0).all() and found.sum() > 0) else even
