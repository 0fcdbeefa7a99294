"""What an optimizer makes of a gradient before any shaper: the plain step that rules start from.

Plain descent follows the gradient. Optimizers that divide it by its own size do not: a shaper
belongs on their update, and damage and progress are those of the shaped update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from risegrad.common.checks import check_choice
from risegrad.core.torch_optimizers import is_adaptive, unwrapped
from risegrad.curvature.estimates.adam_terms import EPSILON, signs
from risegrad.curvature.operators.parameter_space import Space

OptimizerLike = str | Optimizer
PLAIN_DESCENT, ADAPTIVE = "sgd", "adam"


def optimizer_of(given: OptimizerLike | None, model: Any) -> OptimizerLike:
    """What was given; else what a Trainer trains with; plain descent where nothing is known."""
    if isinstance(given, str):
        check_choice("optimizer", given, (PLAIN_DESCENT, ADAPTIVE))
        return given
    if isinstance(given, Optimizer):
        return unwrapped(given)
    if given is not None:
        raise TypeError(
            f"optimizer must be 'sgd', 'adam' or a torch optimizer, got {type(given).__name__}"
        )
    if isinstance(model, nn.Module):
        return PLAIN_DESCENT
    made = getattr(model, "optimizer", None)  # a Trainer makes it when training begins
    if isinstance(made, Optimizer):
        return unwrapped(made)
    named = getattr(getattr(model, "args", None), "optim", PLAIN_DESCENT)
    name = str(getattr(named, "value", named))
    return PLAIN_DESCENT if "sgd" in name else ADAPTIVE


def plain_step(
    optimizer: OptimizerLike, g: Tensor, space: Space, parameters: Mapping[str, Tensor]
) -> Tensor | None:
    """The direction of an adaptive optimizer's next step; None where it is the gradient's."""
    if isinstance(optimizer, str):
        return None if optimizer == PLAIN_DESCENT else signs(g)
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    held = [name for name in space.names if id(parameters[name]) in groups]
    if not held:
        raise ValueError("optimizer must hold parameters of the model, got one that has none")
    if not is_adaptive(optimizer):
        return None
    unit = float(groups[id(parameters[held[0]])]["lr"]) or 1.0
    pieces = []
    for name, piece in zip(space.names, space.tensors(g), strict=True):
        found = adaptive_direction(optimizer, parameters[name], piece)
        group = groups.get(id(parameters[name]))
        pieces.append(found * (float(group["lr"]) / unit if group else 0.0))
    return uphill_never(g, space.flat(pieces))


def uphill_never(g: Tensor, step: Tensor) -> Tensor:
    """The signs instead of a step that momentum leads uphill, where nothing has equal progress."""
    return step if bool(torch.dot(g.double(), step.double()) > 0) else signs(g)


def adaptive_direction(optimizer: Optimizer, parameter: Tensor, g: Tensor) -> Tensor:
    """Adam's next step with its moments as they are; the signs where it has none yet."""
    state = optimizer.state.get(parameter, {})
    if "exp_avg" not in state or "exp_avg_sq" not in state:
        return signs(g)
    group = next(
        one for one in optimizer.param_groups if any(p is parameter for p in one["params"])
    )
    first, second = group["betas"]
    taken = float(state["step"]) + 1
    mean = first * state["exp_avg"] + (1 - first) * g
    square = second * state["exp_avg_sq"] + (1 - second) * g.square()
    root = (square / (1 - second**taken)).sqrt() + group.get("eps", EPSILON)
    found: Tensor = mean / (1 - first**taken) / root
    return found.to(g)
