"""The rules that a diagnosis recommends, as directions for a local validation: informed and Adam's.

Their truth is measured as that of RISE and its controls; a memory is made as a diagnosis makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from risegrad.curvature.estimates.adam_terms import signs
from risegrad.curvature.memory.informed import Informed
from risegrad.curvature.memory.layer_names import named_parameters
from risegrad.curvature.memory.memory import Memory
from risegrad.curvature.operators.objective import Objective
from risegrad.curvature.operators.parameter_space import Space
from risegrad.foresight.foresight_settings import DiagnosisSettings
from risegrad.foresight.step_rules import informed_direction, informed_name

SIGNS = "Adam's signs"
Direction = Callable[[Tensor], Tensor]
"""From a gradient to ``x`` of the step ``-eta x``; nothing is drawn."""


class Rememberable(Protocol):
    """What of a point of a session these rules need."""

    @property
    def kept(self) -> Objective:
        """What was learned before."""

    @property
    def space(self) -> Space:
        """The parameters in blocks."""

    @property
    def gradient(self) -> Tensor:
        """Of the new loss."""

    def memory(self, seed: int) -> Memory | None:
        """Of what was learned before, from other examples than ``kept``; None without any."""


def recommended_rules(
    problem: Rememberable, how: DiagnosisSettings, rates: Tensor | None
) -> dict[str, Direction]:
    """By name; no informed one where no memory can be made."""
    found: dict[str, Direction] = {SIGNS: adam_signs(problem.gradient, rates)}
    memory = _memory(problem, how) if how.dampings else None
    if memory is not None:
        # One is enough to see whether predictions hold where a memory keeps steps away.
        damping = how.dampings[len(how.dampings) // 2]
        found[informed_name(damping)] = informed(problem, Informed(memory, damping))
    return found


def _memory(problem: Rememberable, how: DiagnosisSettings) -> Memory | None:
    try:
        return problem.memory(how.seed)
    except ValueError:  # no layer that a memory could hold
        return None


def adam_signs(g: Tensor, rates: Tensor | None = None) -> Direction:
    """The step of Adam whose second moment has settled, at a fixed rate.

    That rate is the one with which the first step makes the first-order progress of FO, whose step
    sizes are used: signs as they are would go further by orders of magnitude.
    """
    weights = torch.ones_like(g) if rates is None else rates
    reach = torch.dot(weights.double(), g.abs().double()).item()
    same = torch.dot((weights * g).double(), g.double()).item() / reach if reach else 0.0
    return lambda here: same * signs(here)


def informed(problem: Rememberable, shaper: Informed) -> Direction:
    """The gradient as the attached shaper leaves it."""
    parameters = named_parameters(problem.kept.model)
    return lambda here: informed_direction(problem.space, here, parameters, shaper)
