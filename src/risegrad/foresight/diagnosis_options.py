"""What a diagnosis can be told beyond the step: how a batch gives a loss, and how to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from risegrad.common.checks import check_choice, check_int, check_kind, check_number
from risegrad.curvature.estimates.product_budget import ProductBudget
from risegrad.curvature.memory.memory_side import check_damping
from risegrad.curvature.operators.objective import Loss, check_loss
from risegrad.curvature.operators.products import KINDS, Kind
from risegrad.curvature.targets import Predict
from risegrad.foresight.optimizer_steps import OptimizerLike

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
    optimizer: OptimizerLike | None = None
    """What you train with: ``"sgd"``, ``"adam"`` for any that divides a gradient by its size, or
    the optimizer itself, whose moments are then used; None: a Trainer's own, else ``"sgd"``."""
    progress: Progress | None = field(default=None, compare=False, repr=False)
    """Called with the products spent and the most that there will be."""

    def __post_init__(self) -> None:
        check_choice("curvature", self.curvature, KINDS)
        if self.damping is not None:
            check_number("damping", self.damping, above=0)
        if not isinstance(self.budget, ProductBudget):
            raise TypeError(f"budget must be a ProductBudget, got {type(self.budget).__name__}")
        check_int("seed", self.seed)
        # A list does, too; a number alone would fail later, without its name.
        if not isinstance(self.dampings, list):
            check_kind("dampings", self.dampings, tuple, "a list of numbers, such as (0.1, 0.3)")
        for damping in self.dampings:
            check_damping(damping)

    @property
    def positive(self) -> bool:
        """Whether no direction can have negative curvature."""
        return self.curvature != "hessian"
