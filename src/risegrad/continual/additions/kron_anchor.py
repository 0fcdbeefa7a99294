"""Kronecker anchor: a penalty on moving in directions that the memory says matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from risegrad.common.declared_fields import NonNegative
from risegrad.continual.additions.addition import AdditionSettings, Training
from risegrad.continual.additions.run_memory import WithMemory, anchor_in
from risegrad.continual.session import Session, SessionBatch
from risegrad.curvature.memory.anchor import Anchor


@dataclass(frozen=True)
class KronAnchorSettings(AdditionSettings):
    """How strongly; ``memory`` says what is remembered."""

    name: str = "kron-anchor"
    weight: NonNegative = 1.0
    """Lambda in ``lambda tr(D dW S dW')/2``, the mean over the sessions so far."""
    summary: ClassVar[str] = "a quadratic penalty weighted by the Kronecker factors of a memory"

    def make(self, seed: int) -> KronAnchor:
        """The anchor with these settings."""
        return KronAnchor(self)


class KronAnchor(WithMemory):
    """Around the parameters of the end of the last session, with the factors of all of them."""

    name = "kron-anchor"

    def __init__(self, settings: KronAnchorSettings) -> None:
        self.settings = settings
        self.anchor = Anchor({})

    def begin(self, training: Training) -> None:
        if self.memory is not None:
            self.anchor = anchor_in(training.session, self.memory)

    def penalty(
        self, session: Session, batch: SessionBatch, logits: Tensor | None
    ) -> Tensor | None:
        if self.memory is None:
            return None
        weight = self.settings.weight / self.kept.sessions
        return weight * self.memory.penalty(session.module, self.anchor)
