"""After a session, part of the way back: as far as the memory says, or a fixed share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from risegrad.common.declared_fields import Limits, NonNegative
from risegrad.continual.additions.addition import Addition, AdditionSettings, Training
from risegrad.continual.additions.run_memory import WithMemory, anchor_in
from risegrad.curvature.memory.anchor import Anchor
from risegrad.curvature.memory.retraction import interpolate, retract


@dataclass(frozen=True)
class RetractSettings(AdditionSettings):
    """How far back; ``memory`` says what is remembered."""

    name: str = "retract"
    strength: NonNegative = 1.0
    """What the old counts against the new: 0 keeps all of a session's change."""
    per: Literal["layer", "model"] = "layer"
    """A share of its own for each layer, or one for all."""
    summary: ClassVar[str] = "after a session, each layer goes back as far as a memory says"

    def make(self, seed: int) -> Retract:
        """The addition with these settings."""
        return Retract(self)


class Retract(WithMemory):
    """Takes back part of each session's change before anything is remembered of it."""

    name = "retract"

    def __init__(self, settings: RetractSettings) -> None:
        self.settings = settings
        self.before = Anchor({})

    def begin(self, training: Training) -> None:
        self.before = anchor_in(training.session, self.memory)

    def end(self, training: Training) -> None:
        if self.memory is not None:
            settings = self.settings
            retract(
                training.session.module,
                self.before,
                self.memory,
                strength=settings.strength,
                per=settings.per,
            )


@dataclass(frozen=True)
class InterpolateSettings(AdditionSettings):
    """How much of each session's change is kept."""

    name: str = "interpolate"
    share: Annotated[float, Limits(above=0, at_most=1)] = 0.5
    """Of each session's change, after the first session; 1 keeps all of it."""
    summary: ClassVar[str] = "after a session, the weights between those before and after it"

    def make(self, seed: int) -> Interpolate:
        """The addition with these settings."""
        return Interpolate(self)


class Interpolate(Addition):
    """Weight interpolation: one share for all layers, no memory.

    The first session is kept whole: it has nothing before it that would be lost.
    """

    name = "interpolate"
    in_weights = True

    def __init__(self, settings: InterpolateSettings) -> None:
        self.settings = settings
        self.before = Anchor({})

    def begin(self, training: Training) -> None:
        self.before = anchor_in(training.session)

    def end(self, training: Training) -> None:
        if training.session.task:
            interpolate(training.session.module, self.before, self.settings.share)
