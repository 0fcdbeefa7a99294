"""What ``diagnose`` may be given: batches, loss, optimizer, how to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from risegrad.common.checks import check_choice, check_int, check_kind, check_number
from risegrad.core.optimizers import is_adaptive, unwrapped
from risegrad.core.shapers import Rise
from risegrad.curvature.estimates import ProductBudget
from risegrad.curvature.objective import Loss, check_loss
from risegrad.curvature.products import KINDS, Kind
from risegrad.curvature.space import Space
from risegrad.curvature.targets import Predict
from risegrad.memory.factor import check_damping
from risegrad.memory.memory import check_memory

OptimizerLike = str | Optimizer
PLAIN_DESCENT, ADAPTIVE = "sgd", "adam"
EPSILON = 1e-8
Progress = Callable[[int, int], None]
"""Called with the products spent and the most that there will be."""


@dataclass(frozen=True)
class BatchLoss:
    """How a batch gives a loss, where its form does not say it."""

    loss: Loss | None = None
    """A module or a function of (prediction, target); None: cross-entropy."""
    predict: Predict | None = None
    """``predict(model, batch) -> (prediction, target)``; None: pairs, and mappings with labels."""

    def __post_init__(self) -> None:
        check_loss(self.loss)
        if self.predict is not None and not callable(self.predict):
            raise TypeError(f"predict must be a function, got {type(self.predict).__name__}")


@dataclass(frozen=True)
class Measurement:
    """How curvature is measured.

    >>> Measurement(damping=0.0)
    Traceback (most recent call last):
    ValueError: damping must be a finite number > 0, got 0.0
    """

    curvature: Kind = "ggn"
    """``hessian`` (may be negative), ``ggn``, ``empirical-fisher`` or ``fisher``."""
    damping: float | None = None
    """Added to the curvature for the signal in flat directions; None: the average curvature."""
    budget: ProductBudget = field(default_factory=ProductBudget)
    """How many products with the curvature may be spent, and on what."""
    seed: int = 0
    """Of all random vectors."""
    dampings: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    """Of informed steps: each costs one product; none leaves them out."""
    optimizer: OptimizerLike = PLAIN_DESCENT
    """What you train with: ``"sgd"``, ``"adam"`` for any that divides a gradient by its size, or
    the optimizer itself, whose moments are then used."""
    progress: Progress | None = field(default=None, compare=False, repr=False)
    """Called with the products spent and the most that there will be."""

    def __post_init__(self) -> None:
        check_choice("curvature", self.curvature, KINDS)
        if self.damping is not None:
            check_number("damping", self.damping, above=0)
        check_kind("budget", self.budget, ProductBudget, "a ProductBudget")
        check_int("seed", self.seed)
        # A list does, too; a number alone would fail later, without its name.
        if not isinstance(self.dampings, list):
            check_kind("dampings", self.dampings, tuple, "a list of numbers, such as (0.1, 0.3)")
        for damping in self.dampings:
            check_damping(damping)
        if isinstance(self.optimizer, str):
            check_choice("optimizer", self.optimizer, (PLAIN_DESCENT, ADAPTIVE))
        else:
            check_kind("optimizer", self.optimizer, Optimizer, "'sgd', 'adam' or a torch optimizer")

    @property
    def positive(self) -> bool:
        """Whether no direction can have negative curvature."""
        return self.curvature != "hessian"


PIECES = 4
"""Batches that one pair of tensors is cut into, where it has as many examples."""


def check_options(
    model: object, rise: object, memory: object, batch_loss: object, measurement: object
) -> None:
    """The kinds of what ``diagnose`` is told beyond batches."""
    check_kind("model", model, nn.Module, "a torch module (of a Trainer: trainer.model)")
    check_memory(memory)
    for name, value, kind, allowed in (
        ("rise", rise, Rise, "a risegrad.Rise: other rules are always compared with it"),
        ("batch_loss", batch_loss, BatchLoss, "a BatchLoss, such as BatchLoss(loss=...)"),
        ("measurement", measurement, Measurement, "a Measurement, such as Measurement(seed=1)"),
    ):
        if value is not None:
            check_kind(name, value, kind, allowed)


def cut(given: Any) -> Any:
    """A pair of tensors in a few batches; everything else is batches already."""
    pair = isinstance(given, tuple) and len(given) == 2
    if not pair or not all(isinstance(part, Tensor) and part.ndim for part in given):
        return given
    inputs, target = given
    if len(inputs) != len(target):
        raise ValueError(
            f"inputs and target must have equally many rows, got {len(inputs)} and {len(target)}"
        )
    count = max(1, min(PIECES, len(inputs)))
    return list(zip(inputs.chunk(count), target.chunk(count), strict=True))


def plain_step(
    optimizer: OptimizerLike, g: Tensor, space: Space, parameters: Mapping[str, Tensor]
) -> Tensor | None:
    """The direction of an adaptive optimizer's next step; None where it is the gradient's."""
    if isinstance(optimizer, str):
        return None if optimizer == PLAIN_DESCENT else signs(g)
    optimizer = unwrapped(optimizer)
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


def signs(g: Tensor) -> Tensor:
    """The first step of Adam, and every one whose second moment has settled at the gradient's."""
    return g / (g.abs() + EPSILON)
