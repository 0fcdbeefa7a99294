"""What ``[diagnosis]`` and ``[validation]`` of an experiment file say; nothing heavy here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from riselab.common.settings import (
    Checked,
    Count,
    Limits,
    NonNegative,
    OneOf,
    Positive,
    PositiveInt,
)

CURVATURES = ("hessian", "ggn", "empirical-fisher", "fisher")
Curvature = Annotated[str, OneOf(CURVATURES)]


@dataclass(frozen=True)
class DiagnosisSettings(Checked):
    """Which point of the stream is diagnosed, on how many examples, and with which curvature."""

    task: Count = 0
    """the session whose first steps are predicted, from 1; 0: the next one of a run that has a
    checkpoint, else the second"""
    examples: PositiveInt = 64
    """training examples of the earlier tasks, evenly, on which damage is measured"""
    incoming: PositiveInt = 64
    """training examples of the session's task, on which progress is measured"""
    memory: Count = 128
    """other examples of the earlier tasks, for the memory of informed steps; 0: no such steps"""
    batch: PositiveInt = 16
    """examples per batch: differences between batches give the errors"""
    step: NonNegative = 0.0
    """learning rate of the plain step that is predicted block by block; 0: the row's rate"""
    curvature: Curvature = "ggn"
    """``hessian``, ``ggn``, ``empirical-fisher`` or ``fisher``"""
    dampings: tuple[Positive, ...] = (0.03, 0.1, 0.3, 1.0)
    """of informed steps"""
    draws: Annotated[int, Limits(at_least=1, at_most=4)] = 4
    """first steps of a run that ``benchmarks/studies/foresight.py`` reads; one product each"""
    seed: int = 0
    """of the random vectors and of the choice of examples"""
    budget: Mapping[str, Any] = field(default_factory=lambda: {"probes": 32})
    """fields of ``risegrad.curvature.ProductBudget``"""


@dataclass(frozen=True)
class ValidationSettings(Checked):
    """The measured updates with which predictions are compared."""

    steps: tuple[PositiveInt, ...] = (1, 4)
    """for ``rise local``: lengths of the measured updates, in steps"""
    damages: tuple[Positive, ...] = (0.001, 0.01, 0.1, 0.5)
    """step sizes, chosen by FO's predicted damage as a share of the historical loss"""
    step_sizes: tuple[Positive, ...] = ()
    """step sizes themselves, instead of ``damages``"""
    draws: PositiveInt = 4
    """repetitions of every random rule"""
    curvatures: tuple[Curvature, ...] = ("hessian", "ggn", "empirical-fisher")
    """the curvatures whose predictions are compared with measurements"""
    horizons: tuple[PositiveInt, ...] = (1, 4, 16, 64)
    """for ``benchmarks/studies/foresight.py``: steps ahead at which predictions are compared"""
    blocks: PositiveInt = 12
    """for that study: blocks that are shaped alone, spread over all of them"""
    whole_tensors: bool = False
    """for that study: shape single tensors instead of single blocks of the first row that
    shapes: one of thousands of small blocks changes too little to measure"""
    block_draws: PositiveInt = 8
    """repetitions of each"""


def read_sections(plain: Mapping[str, Any]) -> tuple[DiagnosisSettings, ValidationSettings]:
    """The two sections of an experiment file; a ``ValueError`` names the place of a mistake."""
    from riselab.common.settings import read

    found = plain.get("diagnosis") or {}, plain.get("validation") or {}
    if {"damages", "step_sizes"} <= set(found[1]):
        raise ValueError(
            "set validation.damages or validation.step_sizes, not both: step_sizes replaces damages"
        )
    return (
        read(DiagnosisSettings, found[0], "diagnosis"),
        read(ValidationSettings, found[1], "validation"),
    )
