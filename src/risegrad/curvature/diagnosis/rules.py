"""The rules that can act, as directions, and the true curvature at work on them.

Each takes one product for its direction; RISE and isotropic noise also use the traces that are
measured anyway: a random rule's mean damage is that of its mean step and that of its noise. How the
noise is divided among the batches, one more product tells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from risegrad.core.draws import mix
from risegrad.core.shapers import Shaper
from risegrad.core.shards import WholeStep
from risegrad.curvature.damage import Bends, Calibration, priced
from risegrad.curvature.diagnosis.candidates import (
    ADAM,
    FO,
    ISOTROPIC,
    RISE,
    SCALED,
    Candidates,
    informed_name,
)
from risegrad.curvature.diagnosis.inputs import signs
from risegrad.curvature.estimates import (
    Estimate,
    GradientTerms,
    Numbers,
    Probes,
    ProbeTerms,
    jackknife,
    rademacher,
)
from risegrad.curvature.products import Operator
from risegrad.curvature.space import Space
from risegrad.memory.informed import Informed
from risegrad.memory.layers import named_parameters
from risegrad.memory.memory import Memory


@dataclass(frozen=True)
class RuleForecast:
    """One rule. ``share`` decides: damage per progress does not depend on the learning rate.

    It is compared with the optimizer's plain step: FO of plain descent, or Adam's own step.
    """

    name: str
    share: Estimate
    """damage at equal first-order progress, in parts of the plain step's: ``1/Gamma``"""
    gain: Estimate
    """``Gamma``: the plain step's damage over this rule's at equal progress"""
    efficiency: Estimate
    """progress squared per damage, ``(g'x)^2/x'Hx``"""
    damage: Estimate
    """of one step at the learning rate of the diagnosis"""
    progress: float
    """first-order progress of that step, in parts of the plain one's"""
    foretold: float | None = None
    """``share`` as the memory that shapes the step sees it: far off is a picture not to trust"""
    products: int = 0
    """what it cost beyond what all rules share"""
    on: str = "gradient"
    """where it acts: on the gradient, or on the update that the optimizer makes of it"""

    linear: float | None = None
    """first-order change of the historical loss, ``-eta h'x``, at the plain step's progress; None
    in older files"""
    change: Estimate | None = None
    """with the damage at that progress: the whole change of the historical loss"""
    damping: float | None = None
    """of informed steps; None in older files"""

    def changing(self, linear: Estimate, plain: float) -> RuleForecast:
        """With the change of the loss at equal progress, where the plain step's damage is known."""
        error = math.hypot(linear.error, self.share.error * plain)
        change = Estimate(linear.value + self.share.value * plain, error, self.share.products)
        return replace(self, linear=linear.value, change=change)

    @property
    def rate(self) -> float:
        """What to multiply the learning rate by to keep the plain step's first-order progress."""
        return 1 / self.progress if self.progress else float("nan")


@dataclass(frozen=True)
class Measured:
    """What products with blocks and with probes gave."""

    probes: Probes
    gradient: GradientTerms | None = None
    """None where there are too many blocks for a product with each of them"""
    values: Numbers = field(default_factory=dict)
    errors: Numbers = field(default_factory=dict)


NONE = Estimate(0.0)
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
        self, operator: Operator, g: Tensor, h: Tensor, plain: Tensor | None, eta: float
    ) -> None:
        self.operator, self.g, self.h, self.eta = operator, g, h, eta
        self.step = g if plain is None else plain
        self.on = "gradient" if plain is None else "update"
        self.progress = self.gain(self.step)
        self.plain = self.bends(self.step)
        if not bool(self.plain.bends.any()):
            raise ValueError(
                "the historical loss must have curvature along the plain step to compare rules by "
                "their damage, got products that are zero: its predictions may not depend on the "
                "trained parameters, or be so certain that their curvature rounds to zero"
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
        bends = self.operator.bends(x[:, None])[:, 0]
        return Bends(bends, torch.full_like(bends, self.gain(x)))

    def shortened(self) -> Tensor:
        """RISE's mean: the plain step, each block times its mean factor."""
        space = self.operator.space
        return space.spread(space.numbers("mean_factor")) * self.step

    def forecast(
        self, name: str, found: Bends, pull: float, products: int = 0, noise: Estimate = NONE
    ) -> RuleForecast:
        """A rule from its products, and from the historical gradient along it.

        Errors are over batches, and over the probes that gave the ``noise`` in the products.
        """
        rule, bend = priced(found, self.plain), found.bends.sum().item()

        def noisy(of: Estimate) -> Estimate:
            if not (noise.error and bend):
                return of
            error = math.hypot(of.error, abs(of.value) * (noise.error / abs(bend)))
            return Estimate(of.value, error, noise.products)

        half = self.eta**2 / 2
        made = RuleForecast(
            name, noisy(rule.share), noisy(rule.gain), noisy(rule.efficiency),
            Estimate(half * bend, half * noise.error, noise.products),
            found.gains.mean().item() / self.progress, products=products, on=self.on,
        )  # fmt: skip
        linear = Estimate(-self.eta * self.progress * pull)
        return made.changing(linear, half * self.plain.bends.sum().item())

    def noise(self, measured: Measured, seed: int) -> NoiseTerms:
        """RISE scatters by ``(u_b u_b' + |u_b|^2 I)/n_b``, isotropic noise without the first."""
        before = self.operator.products
        c = Calibration.of(self.operator.space)
        u2 = self.operator.space.block_dots(self.step, self.step)
        # u_b'H_bb u_b is known where u is the gradient and every block had its own product.
        known = measured.gradient if self.on == "gradient" else None

        def formula(p: ProbeTerms) -> Numbers:
            own = torch.zeros_like(u2) if known is None else known.ghg
            even = u2 * p.trace
            return {
                "rise": ((own + even) / c.n).sum(),
                "isotropic": (even * (c.d + 1) / (c.d * c.n)).sum(),
            }

        values, errors = jackknife(formula, measured.probes)
        own = NONE if known is not None else self._own_noise(c, mix(seed, 8))
        count = measured.probes.count
        error = math.hypot(errors["rise"].item(), own.error)
        rise = Estimate(values["rise"].item() + own.value, error, count)
        even = Estimate(values["isotropic"].item(), errors["isotropic"].item(), count)
        by_batch = self._noise_by_batch(c, u2, mix(seed, 9))
        return NoiseTerms(rise, even, by_batch, self.operator.products - before)

    def _own_noise(self, c: Calibration, seed: int) -> Estimate:
        """``sum_b u_b'H_bb u_b/n_b``: blocks with random signs do not see each other on average."""
        drawn = rademacher(len(c.d), range(OWN_DRAWS), seed, torch.float64).mT / c.n.sqrt()
        spread = self.operator.space.spread
        bends = self.operator.bends(torch.stack([spread(row) * self.step for row in drawn], 1))
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
        # Where curvature may be negative, parts of a sum that may vanish say nothing.
        return found / found.sum() if bool((found >= 0).all() and found.sum() > 0) else even


def forecasts(
    pricing: Pricing, measured: Measured, candidates: Candidates, seed: int
) -> tuple[RuleForecast, ...]:
    """All rules on the optimizer's plain step, which is the first.

    Products: one for FO, Adam and scaled FO each, one to four for RISE, one for every damping.
    """
    operator, g = pricing.operator, pricing.g
    descent = pricing.on == "gradient"
    first, other = (FO, ADAM) if descent else (ADAM, FO)
    found = [
        pricing.forecast(first, pricing.plain, pricing.pull(pricing.step)),
        *_random_rules(pricing, measured, seed),
    ]
    beside = operator.rated(signs(g)) if descent else g
    rule = pricing.forecast(other, pricing.bends(beside), pricing.pull(beside), 1)
    dampings = candidates.dampings if candidates.folds else ()
    informed = (_informed(pricing, candidates, damping) for damping in dampings)
    return (*found, replace(rule, on="gradient"), *informed)


def _random_rules(pricing: Pricing, measured: Measured, seed: int) -> Iterator[RuleForecast]:
    mean = pricing.shortened()
    bends, pull = pricing.bends(mean), pricing.pull(mean)
    yield pricing.forecast(SCALED, bends, pull, 1)
    noise = pricing.noise(measured, seed)

    def noisy(found: Bends, more: Estimate) -> Bends:
        return Bends(found.bends + more.value * noise.by_batch, found.gains)

    yield pricing.forecast(RISE, noisy(bends, noise.rise), pull, noise.products, noise.rise)
    pull, plain = pricing.pull(pricing.step), noisy(pricing.plain, noise.isotropic)
    yield pricing.forecast(ISOTROPIC, plain, pull, 0, noise.isotropic)


def _informed(pricing: Pricing, candidates: Candidates, damping: float) -> RuleForecast:
    """One product, whether one memory is judged on all batches or two on each other's."""
    operator, model = pricing.operator, candidates.model
    assert model is not None
    named = named_parameters(model)

    def shaped(memory: Memory) -> Tensor:
        shaper = Informed(memory, damping, match="norm")  # and told by how much its rate must rise
        return informed_direction(operator.space, pricing.step, named, shaper)

    bends = torch.zeros(operator.parts, dtype=torch.float64)
    gains = torch.zeros_like(bends)
    steps = [shaped(fold.memory) for fold in candidates.folds]
    pull = 0.0
    for fold, x in zip(candidates.folds, steps, strict=True):
        pull += pricing.pull(x, fold.past)
        chosen = list(fold.parts or range(operator.parts))
        bends[chosen] = operator.bends(x[:, None], chosen)[:, 0]
        gains[chosen] = pricing.gain(x)
    found = pricing.forecast(informed_name(damping), Bends(bends, gains), pull, 1)
    seen = [
        foretold_share(fold.memory, model, pricing, x)
        for fold, x in zip(candidates.folds, steps, strict=True)
    ]
    # Halves are judged, but what is attached, and needs its own rate, has the whole memory.
    whole = candidates.folds[0].memory if candidates.memory is None else candidates.memory
    progress = pricing.gain(shaped(whole)) / pricing.progress
    return replace(found, foretold=sum(seen) / len(seen), progress=progress, damping=damping)


def informed_direction(
    space: Space, g: Tensor, parameters: Mapping[str, Tensor], shaper: Shaper
) -> Tensor:
    """The gradient as a shaper that works on whole tensors leaves it."""
    tie = shaper.tie(parameters, space.names)
    assert tie is not None, f"{shaper} works block by block"
    pieces = [piece.clone() for piece in space.tensors(g)]
    named = dict(zip(space.names, pieces, strict=True))
    shaped = {name: tensor for name, tensor in named.items() if name not in tie.leaves}
    with torch.no_grad():
        tie.ready()(WholeStep(shaped, space.rows_left_out, _no_draw))
    return space.flat(pieces)


def _no_draw(tensors: Mapping[str, Tensor]) -> None:
    raise AssertionError("a step without directions draws nothing")


def foretold_share(memory: Memory, model: nn.Module, pricing: Pricing, x: Tensor) -> float:
    """The share of the plain damage at equal progress that the memory itself would foretell."""
    sides, space = memory.sides(model), pricing.operator.space

    def price(step: Tensor) -> float:
        named = zip(space.names, space.tensors(step), strict=True)
        bend = sum(float(sides[n].quadratic(t)) for n, t in named if n in sides)
        return bend / pricing.gain(step) ** 2

    plain = price(pricing.step)
    return price(x) / plain if plain else float("nan")
