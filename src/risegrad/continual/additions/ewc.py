"""EWC: parameters that mattered to earlier tasks are held where they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from risegrad.common.declared_fields import Count, Limits, NonNegative
from risegrad.common.seeds import generator_for
from risegrad.continual.additions.addition import Addition, AdditionSettings, Training
from risegrad.continual.session import Ref, Session, SessionBatch, differentiable


@dataclass(frozen=True)
class EwcSettings(AdditionSettings):
    """How strongly, and how tasks are put together."""

    name: str = "ewc"
    weight: NonNegative = 1.0
    """Lambda in ``lambda/2 sum F (theta - theta*)^2``."""
    mode: Literal["separate", "online"] = "separate"
    """``separate``: one such term per task, all of them kept. ``online``: one term around the last
    session's parameters, with a decaying sum of all Fisher matrices."""
    decay: Annotated[float, Limits(above=0, at_most=1)] = 1.0
    """Of the older Fisher matrices in mode ``online``, per session."""
    samples: Count = 0
    """Examples of each task for its Fisher matrix, one backward pass each; 0: all."""
    summary: ClassVar[str] = "EWC: a quadratic penalty weighted by the empirical Fisher diagonal"

    def make(self, seed: int) -> Ewc:
        """EWC with these settings."""
        return Ewc(self, seed)


class Ewc(Addition):
    """A sum of quadratics in theta is one quadratic and a constant, so memory does not grow.

    The constant is left out: no gradient sees it, and it would drown the differences of ``zo``.
    """

    name = "ewc"

    def __init__(self, settings: EwcSettings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.fisher: dict[str, Tensor] = {}
        self.center: dict[str, Tensor] = {}

    def check(self, session: Session) -> None:
        if self.fisher and self.fisher.keys().isdisjoint(session.parameters):
            raise ValueError(
                "addition 'ewc' holds parameters of earlier sessions, and none of them is among "
                f"those of session {session.task}: {', '.join(list(session.parameters)[:3])}, ..."
            )

    def begin(self, training: Training) -> None:
        device = training.devices.device
        self.fisher = {name: value.to(device) for name, value in self.fisher.items()}
        self.center = {name: value.to(device) for name, value in self.center.items()}

    def penalty(
        self, session: Session, batch: SessionBatch, logits: Tensor | None
    ) -> Tensor | None:
        terms = [
            (fisher * (_overlap(parameter, fisher) - self.center[name]).square()).sum()
            for name, parameter in session.parameters.items()
            if (fisher := self.fisher.get(name)) is not None
        ]
        if not terms:
            return None
        return self.settings.weight / 2 * torch.stack(terms).sum()

    def end(self, training: Training) -> None:
        session = training.session
        generator = generator_for(self.seed, "ewc", session.task)
        order = torch.randperm(session.examples, generator=generator).tolist()
        refs = [(session.task, index) for index in order[: self.settings.samples or None]]
        fisher = empirical_fisher(training, refs)
        for name, parameter in session.parameters.items():
            self._add(name, fisher[name], parameter.detach().clone())

    def _add(self, name: str, fisher: Tensor, values: Tensor) -> None:
        """Put a task's term to the ones before; a head that grew has rows that those lack."""
        older = torch.zeros_like(fisher)
        center = values.clone()
        if name in self.fisher:
            _overlap(older, self.fisher[name]).copy_(self.fisher[name])
            _overlap(center, self.center[name]).copy_(self.center[name])
        if self.settings.mode == "online":
            self.fisher[name], self.center[name] = self.settings.decay * older + fisher, values
            return
        total = older + fisher
        share = torch.where(total > 0, fisher / total, torch.zeros_like(total))
        self.fisher[name], self.center[name] = total, center + share * (values - center)

    def state_dict(self) -> dict[str, Any]:
        return {
            "fisher": {name: value.cpu() for name, value in self.fisher.items()},
            "center": {name: value.cpu() for name, value in self.center.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.fisher, self.center = dict(state["fisher"]), dict(state["center"])


def empirical_fisher(training: Training, refs: Sequence[Ref]) -> dict[str, Tensor]:
    """The mean over examples of the squared gradient of each one's own loss, at its own label.

    The loss is the session's: over its own classes. It is not the square of a batch's gradient,
    which would shrink with the batch, and labels are not drawn from the model.
    """
    session, devices = training.session, training.devices
    parameters = session.parameters
    sums = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    with differentiable(parameters.values()):
        for batch in training.examples(refs, 1):
            with devices.autocast():
                loss = session.loss(batch, False)
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            for total, gradient in zip(sums.values(), gradients, strict=True):
                if gradient is not None:
                    total.addcmul_(gradient, gradient)
    return {name: devices.total(total) / len(refs) for name, total in sums.items()}


def _overlap(values: Tensor, like: Tensor) -> Tensor:
    """The part of ``values`` that was there when ``like`` was made: the first rows."""
    return values[tuple(slice(size) for size in like.shape)]
