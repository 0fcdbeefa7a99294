"""What could be attached, and memories for it: the one given, or halves judged on each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from risegrad.core.shapers import IsotropicNoise, Rise, ScaledFO, Shaper
from risegrad.curvature.diagnosis.inputs import Measurement
from risegrad.curvature.objective import Objective
from risegrad.curvature.space import Space
from risegrad.memory.informed import Informed
from risegrad.memory.memory import Memory
from risegrad.memory.remembering import remember

FO, SCALED, RISE = "FO", "scaled FO", "RISE"
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

    def shapers(self) -> dict[str, Shaper]:
        """Ready to attach."""
        like = {name: getattr(self.rise, name) for name in ("q", "blocks", "seed", "exempt")}
        found: dict[str, Shaper] = {
            RISE: self.rise, SCALED: ScaledFO(**like), ISOTROPIC: IsotropicNoise(**like)
        }  # fmt: skip
        if self.memory is not None:
            exempt = self.rise.exempt
            found |= {
                informed_name(rho): Informed(self.memory, rho, match="norm", exempt=exempt)
                for rho in self.dampings
            }
        return found


def not_considered(reason: str) -> str:
    """The note of a diagnosis without informed steps."""
    return f"Informed steps were not considered: {reason}."


NEGATIVE = not_considered(
    "with curvature 'hessian' damage may be negative, and then shares of it say nothing; 'ggn' "
    "considers them"
)


def candidates_for(
    kept: Objective,
    rise: Rise,
    memory: Memory | None,
    how: Measurement,
    space: Space,
    parameters: Mapping[str, Tensor],
) -> Candidates:
    """The rules to be compared; ``note`` says why there is no informed one, if so."""

    def remembered(numbers: Sequence[int]) -> Memory:
        batches = [kept.batches[number] for number in numbers]
        return remember(kept.model, batches, predict=kept.predict, examples=None, seed=how.seed)

    def fold(here: Sequence[int], there: tuple[int, ...]) -> MemoryFold:
        """Steps of a memory are judged on other batches, with the historical gradient of these."""
        past = torch.zeros(space.d, dtype=space.dtype, device=space.device)
        for n in there:
            past += kept.weights[n] * kept.only(n).gradient(space, parameters)
        return MemoryFold(remembered(here), there, past)

    if not how.dampings:
        return Candidates(rise)
    if not how.positive:
        return Candidates(rise, note=NEGATIVE)
    if memory is not None:
        memory.check_fits(kept.model)
        return Candidates(rise, memory, (MemoryFold(memory),), how.dampings, kept.model)
    numbers = tuple(range(len(kept.batches)))
    if len(numbers) < 2:
        reason = "it needs a memory=, or two historical batches or more"
    elif not isinstance(kept.loss, nn.CrossEntropyLoss):
        reason = "a memory= must be given for this loss"
    else:
        even, odd = numbers[::2], numbers[1::2]
        try:
            folds = (fold(even, odd), fold(odd, even))
            return Candidates(rise, remembered(numbers), folds, how.dampings, kept.model)
        except ValueError as error:  # a model without a layer that a memory could hold
            reason = str(error)
    return Candidates(rise, note=not_considered(reason))
