"""Memories for a diagnosis: the one that is given, or halves that are judged on each other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from risegrad.core.shapers import Rise
from risegrad.curvature.memory.memory import Memory
from risegrad.curvature.memory.remembering import remember
from risegrad.curvature.operators.objective import Objective
from risegrad.foresight.diagnosis_options import Measurement
from risegrad.foresight.step_rules import Candidates, MemoryFold


def candidates_for(
    kept: Objective, rise: Rise, memory: Memory | None, how: Measurement
) -> Candidates:
    """The rules to be compared; ``note`` says why there is no informed one, if so."""
    if not how.dampings or not how.positive:
        return Candidates(rise)
    if memory is not None:
        memory.check_fits(kept.model)
        return Candidates(rise, memory, (MemoryFold(memory),), how.dampings, kept.model)
    if len(kept.batches) < 2:
        return Candidates(rise, note=_not("it needs a memory=, or two historical batches or more"))
    if not isinstance(kept.loss, nn.CrossEntropyLoss):
        return Candidates(rise, note=_not("a memory= must be given for this loss"))
    try:
        return _halves(kept, rise, how)
    except ValueError as error:  # a model without a layer that a memory could hold
        return Candidates(rise, note=_not(str(error)))


def _halves(kept: Objective, rise: Rise, how: Measurement) -> Candidates:
    numbers = tuple(range(len(kept.batches)))
    even, odd = numbers[::2], numbers[1::2]
    folds = (
        MemoryFold(_memory(kept, even, how.seed), odd),
        MemoryFold(_memory(kept, odd, how.seed), even),
    )
    whole = _memory(kept, numbers, how.seed)
    return Candidates(rise, whole, folds, how.dampings, kept.model)


def _memory(kept: Objective, numbers: Sequence[int], seed: int) -> Memory:
    batches = [kept.batches[number] for number in numbers]
    return remember(kept.model, batches, predict=kept.predict, examples=None, seed=seed)


def _not(reason: str) -> str:
    return f"Informed steps were not considered: {reason}."
