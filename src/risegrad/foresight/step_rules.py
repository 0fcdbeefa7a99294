"""The rules that can act, as directions: what the optimizer's step would be under each.

Each takes one product with the true curvature for its direction; RISE and isotropic noise also use
the traces that are measured anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from risegrad.core.shapers import IsotropicNoise, Rise, ScaledFO, Shaper
from risegrad.core.whole_steps import WholeStep
from risegrad.curvature.estimates.adam_terms import signs
from risegrad.curvature.estimates.measuring import Measured
from risegrad.curvature.estimates.rule_prices import Bends
from risegrad.curvature.memory.informed import Informed
from risegrad.curvature.memory.layer_names import named_parameters
from risegrad.curvature.memory.memory import Memory
from risegrad.curvature.operators.parameter_space import Space
from risegrad.foresight.rule_forecast import RuleForecast
from risegrad.foresight.rule_pricing import OWN_DRAWS, Pricing

FO, SCALED, RISE, COVARIANCE = "FO", "scaled FO", "RISE", "covariance noise"
ISOTROPIC, ADAM = "isotropic noise", "Adam's own step"


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
    past: Tensor | None = field(default=None, compare=False, repr=False)
    """Their part of the historical gradient; None: all of it."""


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

    def products(self, parts: int, descent: bool) -> int:
        """What the rules cost beyond what is measured for the blocks, with so many batches."""
        noise = (parts > 1) + (0 if descent else OWN_DRAWS)
        return 3 + noise + (len(self.dampings) if self.folds else 0)

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
    found.append(replace(rule, on="gradient"))
    for damping in candidates.dampings if candidates.folds else ():
        found.append(_informed(pricing, candidates, damping))
    return tuple(found)


def _random_rules(pricing: Pricing, measured: Measured, seed: int) -> Iterator[RuleForecast]:
    mean = pricing.shortened()
    bends, pull = pricing.bends(mean), pricing.pull(mean)
    yield pricing.forecast(SCALED, bends, pull, 1)
    noise = pricing.noise(measured, seed)
    rise = pricing.noisy(RISE, bends, pull, noise.rise, noise.by_batch)
    yield replace(rise, products=noise.products)
    pull = pricing.pull(pricing.step)
    yield pricing.noisy(ISOTROPIC, pricing.plain, pull, noise.isotropic, noise.by_batch)


def _informed(pricing: Pricing, candidates: Candidates, damping: float) -> RuleForecast:
    """One product, whether one memory is judged on all batches or two on each other's."""
    operator, model = pricing.operator, candidates.model
    assert model is not None
    named = named_parameters(model)

    def shaped(memory: Memory) -> Tensor:
        return informed_direction(operator.space, pricing.step, named, Informed(memory, damping))

    bends = torch.zeros(operator.parts, 1, dtype=torch.float64)
    gains = torch.zeros_like(bends)
    steps = [shaped(fold.memory) for fold in candidates.folds]
    pull = 0.0
    for fold, x in zip(candidates.folds, steps, strict=True):
        pull += pricing.pull(x, fold.past)
        chosen = list(fold.parts or range(operator.parts))
        bends[chosen] = operator.bends(x[:, None], chosen)
        gains[chosen] = pricing.gain(x)
    pricing.tick(1)
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
