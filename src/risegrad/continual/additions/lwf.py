"""LwF: the scores of old classes stay close to those at the start of the session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import log_softmax, softmax

from risegrad.common.declared_fields import NonNegative, Positive
from risegrad.continual.additions.addition import Addition, AdditionSettings, Training
from risegrad.continual.session import Session, SessionBatch


@dataclass(frozen=True)
class LwfSettings(AdditionSettings):
    """Weight and softness of the distillation."""

    name: str = "lwf"
    weight: NonNegative = 3.0
    """Of the distillation beside the loss."""
    temperature: Positive = 2.0
    """Divides the scores of teacher and student."""
    summary: ClassVar[str] = "LwF: distillation of the old classes' scores"

    def make(self, seed: int) -> Lwf:
        """LwF with these settings; it draws nothing, so the seed is not used."""
        return Lwf(self)


class Lwf(Addition):
    """The teacher is the trained parameters as the session found them; the backbone is shared.

    A copy of the trained ones is all that is kept: for the teacher's pass they change places.
    """

    name = "lwf"
    needs_logits = True

    def __init__(self, settings: LwfSettings) -> None:
        self.settings = settings
        self._teacher: dict[str, Tensor] = {}
        self._known: tuple[SessionBatch, Tensor] | None = None

    def begin(self, training: Training) -> None:
        parameters = training.session.parameters
        self._teacher = {name: p.detach().clone() for name, p in parameters.items()}
        self._known = None

    def penalty(
        self, session: Session, batch: SessionBatch, logits: Tensor | None
    ) -> Tensor | None:
        if session.seen_before == 0:
            return None
        assert logits is not None  # needs_logits
        old, new = self._taught(session, batch), logits[:, : session.seen_before]
        return self.settings.weight * distillation(new, old, self.settings.temperature)

    def end(self, training: Training) -> None:
        self._teacher, self._known = {}, None

    def _taught(self, session: Session, batch: SessionBatch) -> Tensor:
        """Computed once per batch, however often the loss on it is evaluated."""
        if self._known is None or self._known[0] is not batch:
            assert session.logits is not None  # needs_logits
            swapped = _swapped(session.parameters, self._teacher)
            with torch.no_grad(), swapped, _evaluating(session.module):
                scores = session.logits(batch)[:, : session.seen_before]
            self._known = (batch, scores)
        return self._known[1]


def distillation(new: Tensor, old: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the softened new scores under the softened old ones, mean over examples."""
    kind = torch.promote_types(new.dtype, torch.float32)  # not in half precision
    wanted = softmax(old.to(kind) / temperature, dim=1)
    return -(wanted * log_softmax(new.to(kind) / temperature, dim=1)).sum(1).mean()


@contextmanager
def _swapped(parameters: Mapping[str, Parameter], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Parameters with other values for a moment: only pointers change, so no bit is lost."""
    before = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = values[name]
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = before[name]


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
