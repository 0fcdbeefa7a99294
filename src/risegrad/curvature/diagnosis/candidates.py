"""What could be attached, and memories for it: the one given, or halves judged on each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from risegrad.core.shapers import Rise
from risegrad.curvature.diagnosis.inputs import Measurement
from risegrad.curvature.diagnosis.rules import Candidates, MemoryFold
from risegrad.curvature.objective import Objective
from risegrad.curvature.space import Space
from risegrad.memory.memory import Memory
from risegrad.memory.remembering import remember


def not_considered(reason: str) -> str:
    """The note of a diagnosis without informed steps."""
    return f"Informed steps were not considered: {reason}."


NEGATIVE = not_considered(
    "with curvature 'hessian' damage may be negative, and then shares of it say nothing; 'ggn' "
    "considers them"
)


def candidates_for(
    kept: Objective, rise: Rise, memory: Memory | None, how: Measurement
) -> Candidates:
    """The rules to be compared; ``note`` says why there is no informed one, if so."""
    if not how.dampings:
        return Candidates(rise)
    if not how.positive:
        return Candidates(rise, note=NEGATIVE)
    if memory is not None:
        memory.check_fits(kept.model)
        return Candidates(rise, memory, (MemoryFold(memory),), how.dampings, kept.model)
    if len(kept.batches) < 2:
        return Candidates(
            rise, note=not_considered("it needs a memory=, or two historical batches or more")
        )
    if not isinstance(kept.loss, nn.CrossEntropyLoss):
        return Candidates(rise, note=not_considered("a memory= must be given for this loss"))
    try:
        return _halves(kept, rise, how)
    except ValueError as error:  # a model without a layer that a memory could hold
        return Candidates(rise, note=not_considered(str(error)))


def _halves(kept: Objective, rise: Rise, how: Measurement) -> Candidates:
    numbers = tuple(range(len(kept.batches)))
    even, odd = numbers[::2], numbers[1::2]
    folds = (
        MemoryFold(_memory(kept, even, how.seed), odd),
        MemoryFold(_memory(kept, odd, how.seed), even),
    )
    whole = _memory(kept, numbers, how.seed)
    return Candidates(rise, whole, folds, how.dampings, kept.model)


def with_pasts(
    chosen: Candidates, kept: Objective, space: Space, parameters: Mapping[str, Tensor]
) -> Candidates:
    """With the historical gradient of each fold's own batches: what its step is judged on."""

    def past(numbers: Sequence[int]) -> Tensor | None:
        if not numbers:
            return None
        total = torch.zeros(space.d, dtype=space.dtype, device=space.device)
        for n in numbers:
            total += kept.weights[n] * kept.only(n).gradient(space, parameters)
        return total

    return replace(
        chosen, folds=tuple(replace(fold, past=past(fold.parts)) for fold in chosen.folds)
    )


def _memory(kept: Objective, numbers: Sequence[int], seed: int) -> Memory:
    batches = [kept.batches[number] for number in numbers]
    return remember(kept.model, batches, predict=kept.predict, examples=None, seed=seed)
