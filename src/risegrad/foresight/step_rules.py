"""The rules that can act, as directions: what a step of plain descent would be under each.

A rule whose mean damage follows from the measured terms (RISE, scaled FO, isotropic noise) costs
nothing more. The others take one product with the true curvature for each direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from risegrad.core.shapers import IsotropicNoise, Rise, ScaledFO, Shaper
from risegrad.core.whole_steps import WholeStep
from risegrad.curvature.estimates.adam_terms import EPSILON
from risegrad.curvature.estimates.estimated import Estimate
from risegrad.curvature.estimates.gradient_terms import Tick
from risegrad.curvature.estimates.measuring import Measured
from risegrad.curvature.estimates.rule_prices import Bends, priced
from risegrad.curvature.memory.informed import Informed
from risegrad.curvature.memory.layer_names import named_parameters
from risegrad.curvature.memory.memory import Memory
from risegrad.curvature.operators.parameter_space import Space
from risegrad.curvature.operators.products import Operator
from risegrad.foresight.rule_forecast import RuleForecast

FO, SCALED, RISE, COVARIANCE = "FO", "scaled FO", "RISE", "covariance noise"
ISOTROPIC, ADAM = "isotropic noise", "Adam's own step"
FROM_TERMS = {SCALED: "scaled_fo", RISE: "rise", ISOTROPIC: "isotropic_noise"}
"""Rules whose damage and share are among the measured numbers, and their names there."""


def informed_name(damping: float) -> str:
    """How an informed step is called."""
    return f"informed, damping {damping:g}"


@dataclass(frozen=True)
class MemoryFold:
    """A memory, and the historical batches on which steps that it shapes are measured.

    A memory must not be judged on the examples that it was made from: it does not step where they
    are, and looks better than it is.
    """

    memory: Memory
    parts: tuple[int, ...] = ()
    """Numbers of batches; empty: all."""


@dataclass(frozen=True)
class Candidates:
    """What could be attached, and what its memories are to be judged on."""

    rise: Rise = field(default_factory=Rise)
    memory: Memory | None = None
    """The one that a recommended shaper gets."""
    folds: tuple[MemoryFold, ...] = ()
    dampings: tuple[float, ...] = ()
    model: nn.Module | None = None
    """Whose parameters the folds' memories are of."""
    note: str = ""
    """Why there is no informed rule, where there is none."""

    @property
    def products(self) -> int:
        """What the rules cost beyond what is measured for the blocks: FO's, Adam's, informed."""
        return 2 + (len(self.dampings) if self.folds else 0)

    def shapers(self) -> dict[str, Shaper]:
        """Ready to attach."""
        like = {"q": self.rise.q, "blocks": self.rise.blocks, "seed": self.rise.seed,
                "exempt": self.rise.exempt}  # fmt: skip
        found: dict[str, Shaper] = {
            RISE: self.rise,
            SCALED: ScaledFO(**like),  # type: ignore[arg-type]
            ISOTROPIC: IsotropicNoise(**like),  # type: ignore[arg-type]
        }
        if self.memory is not None:
            found |= {
                informed_name(rho): Informed(self.memory, rho, exempt=self.rise.exempt)
                for rho in self.dampings
            }
        return found


def forecasts(
    operator: Operator, g: Tensor, measured: Measured, eta: float, candidates: Candidates,
    tick: Tick,
) -> tuple[RuleForecast, ...]:  # fmt: skip
    """All rules, FO first. Products: one for FO, one for Adam, one for every damping."""
    if not bool(g.any()):
        return ()
    pricing = _Pricing(operator, g, eta, tick)
    found = [pricing.forecast(FO, pricing.fo)]
    found += [_from_terms(name, key, pricing, measured) for name, key in FROM_TERMS.items()]
    found.append(pricing.single(ADAM, operator.rated(g / (g.abs() + EPSILON))))
    for damping in candidates.dampings if candidates.folds else ():
        found.append(_informed(pricing, candidates, damping))
    return tuple(found)


class _Pricing:
    """The true curvature at work on directions, and FO's for comparison."""

    def __init__(self, operator: Operator, g: Tensor, eta: float, tick: Tick) -> None:
        self.operator, self.g, self.eta, self.tick = operator, g, eta, tick
        self.norm2 = torch.dot(g.double(), g.double()).cpu()
        self.fo = self.bends(g)

    def bends(self, x: Tensor) -> Bends:
        """One product."""
        bends = self.operator.bends(x[:, None])
        self.tick(1)
        return Bends.of(bends, torch.dot(self.g.double(), x.double())[None])

    def single(self, name: str, x: Tensor) -> RuleForecast:
        """A rule without randomness."""
        return self.forecast(name, self.bends(x), 1)

    def forecast(self, name: str, found: Bends, products: int = 0) -> RuleForecast:
        """A rule from its products."""
        rule = priced(found, self.fo)
        damage = self.eta**2 / 2 * found.bends.sum(0).mean().item()
        progress = (found.gains.mean() / self.norm2).item()
        return RuleForecast(
            name, rule.share, rule.gain, rule.efficiency, Estimate(damage), progress,
            products=products,
        )  # fmt: skip


def _from_terms(name: str, key: str, pricing: _Pricing, measured: Measured) -> RuleForecast:
    def at(what: str) -> Estimate:
        place = f"{what}.{key}"
        count = measured.probes.count
        return Estimate(measured.values[place].item(), measured.errors[place].item(), count)

    share, fo = at("share"), priced(pricing.fo, pricing.fo).efficiency
    kept = 1.0
    if name != ISOTROPIC:
        space, g2 = pricing.operator.space, measured.gradient.terms().g2
        kept = ((space.numbers("mean_factor") * g2).sum() / g2.sum()).item()
    return RuleForecast(
        name, share, _inverse(share, 1.0), _inverse(share, fo.value), at("damage"), kept
    )


def _inverse(share: Estimate, unit: float) -> Estimate:
    """``unit/share`` with the error that follows from the share's."""
    value = unit / share.value if share.value else float("nan")
    return Estimate(value, abs(value) * share.relative_error, share.products)


def _informed(pricing: _Pricing, candidates: Candidates, damping: float) -> RuleForecast:
    """One product, whether one memory is judged on all batches or two on each other's."""
    space, g, operator, model = (
        pricing.operator.space,
        pricing.g,
        pricing.operator,
        candidates.model,
    )
    assert model is not None
    bends = torch.zeros(operator.parts, 1, dtype=torch.float64)
    gains = torch.zeros_like(bends)
    steps = [
        informed_direction(space, g, named_parameters(model), Informed(fold.memory, damping))
        for fold in candidates.folds
    ]
    for fold, x in zip(candidates.folds, steps, strict=True):
        chosen = list(fold.parts or range(operator.parts))
        bends[chosen] = operator.bends(x[:, None], chosen)
        gains[chosen] = torch.dot(g.double(), x.double()).cpu()
    pricing.tick(1)
    found = pricing.forecast(informed_name(damping), Bends(bends, gains), 1)
    seen = [
        foretold_share(fold.memory, model, space, g, x)
        for fold, x in zip(candidates.folds, steps, strict=True)
    ]
    return replace(found, foretold=sum(seen) / len(seen))


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


def foretold_share(memory: Memory, model: nn.Module, space: Space, g: Tensor, x: Tensor) -> float:
    """The share of FO's damage at equal progress that the memory itself would foretell."""
    sides = memory.sides(model)

    def price(step: Tensor) -> float:
        named = zip(space.names, space.tensors(step), strict=True)
        bend = sum(float(sides[n].quadratic(t)) for n, t in named if n in sides)
        return bend / torch.dot(g.double(), step.double()).item() ** 2

    plain = price(g)
    return price(x) / plain if plain else float("nan")
