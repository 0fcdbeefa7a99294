"""Updates by every rule at several step sizes: what they did to the old loss, what was foretold.

Truth and prediction use the same historical batches. An update ``D`` of one step or a few changes
the historical loss by ``L(theta + D) - L(theta)``; every curvature predicts ``h'D + D'HD/2`` with
what was known before it. The rules see the same incoming batches, the random ones several draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from risegrad.core.draws import mix, numbered_generator
from risegrad.core.shapers import covariance_noise, shape
from risegrad.curvature.diagnosis.candidates import informed_name
from risegrad.curvature.diagnosis.inputs import signs
from risegrad.curvature.diagnosis.rules import informed_direction
from risegrad.curvature.objective import Objective
from risegrad.curvature.products import Kind, NetworkOperator
from risegrad.curvature.space import Space
from risegrad.memory.informed import Informed
from risegrad.memory.layers import named_parameters
from riselab.foresight.session import SessionProblem
from riselab.foresight.settings import DiagnosisSettings

SIGNS = "Adam's signs"
Direction = Callable[[Tensor], Tensor]
"""From a gradient to ``x`` of the step ``-eta x``; nothing is drawn."""


def recommended_rules(
    problem: SessionProblem, how: DiagnosisSettings, rates: Tensor | None
) -> dict[str, Direction]:
    """By name; no informed one where no memory can be made."""
    found: dict[str, Direction] = {SIGNS: adam_signs(problem.gradient, rates)}
    memory = None
    if how.dampings:
        with suppress(ValueError):  # no layer that a memory could hold
            memory = problem.memory(how.seed)
    if memory is not None:
        # One is enough to see whether predictions hold where a memory keeps steps away.
        damping = how.dampings[len(how.dampings) // 2]
        shaper = Informed(memory, damping, match="norm")
        named = named_parameters(problem.kept.model)
        found[informed_name(damping)] = lambda here: informed_direction(
            problem.space, here, named, shaper
        )
    return found


def adam_signs(g: Tensor, rates: Tensor | None = None) -> Direction:
    """The step of Adam whose second moment has settled, at a fixed rate.

    That rate is the one with which the first step makes the first-order progress of FO, whose step
    sizes are used: signs as they are would go further by orders of magnitude.
    """
    weights = torch.ones_like(g) if rates is None else rates
    reach = torch.dot(weights.double(), g.abs().double()).item()
    same = torch.dot((weights * g).double(), g.double()).item() / reach if reach else 0.0
    return lambda here: same * signs(here)


RULES = ("FO", "scaled FO", "RISE", "covariance noise")
"""Those of the space alone; a bench may have more, which need a memory or the first gradient."""
RANDOM = ("RISE", "covariance noise")


@dataclass(frozen=True)
class Outcome:
    """One update: what it did to the historical loss, and what each curvature had said."""

    rule: str
    step_size: float
    steps: int
    draw: int
    length: float
    """``|D|``"""
    true: float
    linear: float
    """``h'D``"""
    damage: dict[str, float]
    """``D'HD/2`` by curvature"""

    def predicted(self, curvature: str) -> float:
        """The predicted change of the historical loss: first order plus damage."""
        return self.linear + self.damage[curvature]


@dataclass(frozen=True)
class Bench:
    """A model at one checkpoint, ready to be moved and put back."""

    kept: Objective
    new: Objective
    space: Space
    parameters: Mapping[str, Tensor]
    operators: Mapping[str, NetworkOperator]
    rates: Tensor | None = None
    """relative learning rates of all coordinates, where groups have rates of their own"""
    more: Mapping[str, Direction] = field(default_factory=dict)
    """rules beyond ``RULES``, by name: from a gradient to their direction, without draws"""

    @staticmethod
    def of(
        kept: Objective, new: Objective, space: Space, parameters: Mapping[str, Tensor],
        curvatures: Sequence[Kind], seed: int = 0, columns: int = 4, rates: Tensor | None = None,
    ) -> Bench:  # fmt: skip
        """A bench with one operator for each kind of curvature."""
        made: dict[str, NetworkOperator] = {
            kind: NetworkOperator(kept, space, parameters, kind, columns, seed=seed % 2**31)
            for kind in curvatures
        }
        return Bench(kept, new, space, parameters, made, rates)

    def gradient(self) -> Tensor:
        """The gradient of the new task at the parameters as they are."""
        return self.new.gradient(self.space, self.parameters)

    def direction(self, rule: str, g: Tensor, seed: int) -> Tensor:
        """``x`` of the step ``-eta x``, each group at its own rate."""
        x = self.more[rule](g) if rule in self.more else direction(rule, self.space, g, seed)
        return x if self.rates is None else self.rates * x

    @contextmanager
    def moved(self, displacement: Tensor) -> Iterator[None]:
        """The parameters plus a displacement, and afterwards bit by bit what they were."""
        before = [self.parameters[name].detach().clone() for name in self.space.names]
        self.place([b + m for b, m in zip(before, self.space.tensors(displacement), strict=True)])
        try:
            yield
        finally:
            self.place(before)

    @torch.no_grad()
    def place(self, values: Sequence[Tensor]) -> None:
        """Set the parameters to these values."""
        for name, value in zip(self.space.names, values, strict=True):
            self.parameters[name].copy_(value)


def direction(rule: str, space: Space, g: Tensor, seed: int) -> Tensor:
    """``x`` of the step ``-eta x``; random rules draw block by block."""
    if rule == "FO":
        return g
    if rule == "scaled FO":
        return space.spread(space.numbers("mean_factor")) * g
    parts = []
    for number, block in enumerate(space.blocks):
        generator = numbered_generator(seed, number, g.device)
        if rule == "RISE":
            parts.append(shape(g[block.at], block.q, generator))
        else:
            normal = torch.randn(block.d + 1, generator=generator, dtype=g.dtype, device=g.device)
            parts.append(covariance_noise(g[block.at], normal[0], normal[1:], block.q))
    return torch.cat(parts)


def displacement(bench: Bench, rule: str, eta: float, steps: int, seed: int, g: Tensor) -> Tensor:
    """``D`` after some steps of descent by the rule, all on the incoming batches."""
    total = -eta * bench.direction(rule, g, mix(seed, 0))
    for step in range(1, steps):
        with bench.moved(total):
            here = bench.gradient()
        total = total - eta * bench.direction(rule, here, mix(seed, step))
    return total


def step_sizes_for(bench: Bench, g: Tensor, damages: Sequence[float]) -> list[float]:
    """Sizes at which FO's predicted damage is the given part of the historical loss."""
    operator = next((o for name, o in bench.operators.items() if name != "hessian"), None)
    operator = operator or next(iter(bench.operators.values()))
    x = bench.direction("FO", g, 0)
    bend = torch.dot(x.double(), (operator @ x).double()).item()
    if bend <= 0:
        raise ValueError(
            "the gradient meets no positive curvature, so damages cannot set step sizes: give "
            "validation.step_sizes"
        )
    loss = bench.kept.value()
    return [(2 * part * loss / bend) ** 0.5 for part in damages]


def validate(
    bench: Bench,
    step_sizes: Sequence[float],
    steps: Sequence[int] = (1, 4),
    draws: int = 4,
    seed: int = 0,
    tick: Callable[[str], None] = lambda words: None,
) -> list[Outcome]:
    """All updates of all rules; one product for each update and curvature, or fewer."""
    rules = (*RULES, *bench.more)
    g = bench.gradient()
    h = bench.kept.gradient(bench.space, bench.parameters)
    before = bench.kept.value()
    found = []
    for rule in rules:
        for draw in range(draws if rule in RANDOM else 1):
            tick(f"{rule}, draw {draw + 1}")
            chosen = mix(seed, rules.index(rule), draw)
            for size, count, move, damage in _updates(bench, rule, step_sizes, steps, chosen, g):
                with bench.moved(move):
                    true = bench.kept.value() - before
                wide = move.double()
                linear = torch.dot(h.double(), wide).item()
                found.append(
                    Outcome(rule, size, count, draw, wide.norm().item(), true, linear, damage)
                )
    return found


Update = tuple[float, int, Tensor, dict[str, float]]
"""Step size, steps, displacement, and the damage that each curvature predicts for it."""


def _updates(
    bench: Bench, rule: str, sizes: Sequence[float], steps: Sequence[int], seed: int, g: Tensor
) -> list[Update]:
    """Of one draw. All products are taken together, which is quicker than one by one."""
    line = displacement(bench, rule, 1.0, 1, seed, g)
    several = [
        (eta, count, displacement(bench, rule, eta, count, seed, g))
        for count in steps if count > 1 for eta in sizes
    ]  # fmt: skip
    on_line, *damages = damages_of(bench, [line, *(move for *_, move in several)])
    found: list[Update] = [(*made, damage) for made, damage in zip(several, damages, strict=True)]
    if 1 in steps:
        # One step is a line: a single product serves all sizes.
        found += [
            (eta, 1, eta * line, {name: eta**2 * damage for name, damage in on_line.items()})
            for eta in sizes
        ]
    return found


def damages_of(bench: Bench, moves: Sequence[Tensor]) -> list[dict[str, float]]:
    """``D'HD/2`` of every move, by curvature."""
    stacked = torch.stack(list(moves), 1)
    found = {
        name: (stacked.double() * (operator @ stacked).double()).sum(0) / 2
        for name, operator in bench.operators.items()
    }
    return [
        {name: values[number].item() for name, values in found.items()}
        for number in range(len(moves))
    ]
