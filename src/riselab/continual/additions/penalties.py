"""Penalties that hold a model near what it was: EWC, LwF, a Kronecker anchor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import log_softmax, softmax

from risegrad.common.seeds import generator_for
from risegrad.memory.penalty import Anchor
from riselab.common.settings import Count, Limits, NonNegative, Positive
from riselab.continual.additions.addition import Addition, AdditionSettings, Training
from riselab.continual.additions.memory import WithMemory, anchor_in
from riselab.continual.host import Ref, Session, SessionBatch, differentiable


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
    """The mean over examples of the squared gradient of one example's loss, at its label.

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
