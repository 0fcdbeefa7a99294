"""What an addition may do during learning. Everything is optional; the default does nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from risegrad.core.attachment import Attachment
from riselab.common.settings import Checked
from riselab.continual.devices import Devices
from riselab.continual.host import Host, Ref, Session, SessionBatch


class Training(Protocol):
    """A session in training, as additions see it."""

    session: Session
    devices: Devices
    seed: int
    step: int
    """How many steps the session took so far."""
    optimizers: dict[str, Optimizer]
    """By group; shapers are attached, so a later step hook sees the shaped gradients."""
    shaping: dict[str, Attachment]
    """By group, where its steps are shaped."""

    @property
    def exact_parameters(self) -> dict[str, Parameter]:
        """Those of the groups that train now by backpropagation, by full name."""

    def backward(self, refs: Sequence[Ref]) -> Tensor:
        """Replace the exact gradients by those of the loss on ``refs``, which is returned.

        Over all classes seen, without penalties; all processes share the work.
        """

    def examples(self, refs: Sequence[Ref], size: int) -> Iterator[SessionBatch]:
        """This process's part of ``refs`` in batches of ``size``, for a look after training."""


class Addition:
    """One addition to the learning of a stream.

    A step goes: ``replayed`` examples join the batch, the gradients of the loss with ``penalty``
    are computed, ``adjust`` may change them, then come clipping, shaping and the optimizer.
    """

    name: ClassVar[str]
    needs_past: ClassVar[bool] = True
    """Whether it protects what earlier sessions trained, so that it needs a host that trains the
    same parameters in every session."""
    in_weights: ClassVar[bool] = False
    """Whether it protects the maps of layers rather than tensors: then a host that puts new
    adapters on the same layers in every session will do."""
    serves: ClassVar[str] = ""
    """What it keeps of earlier sessions for the rules that need just that (``RuleKind.needs``)."""
    uses: ClassVar[tuple[str, ...]] = ()
    """Which settings of the run's table ``memory`` it looks at."""
    pulls: ClassVar[bool] = False
    """Whether it adds to the gradients of all groups together right before they step."""
    needs_exact: ClassVar[bool] = False
    """Whether it can only work with gradients by backpropagation."""
    needs_logits: ClassVar[bool] = False
    """Whether its ``penalty`` needs the scores of all classes seen."""
    joins: ClassVar[bool] = False
    """Whether examples of earlier tasks join its batches."""
    every_class: ClassVar[bool] = False
    """Whether the loss is over all classes seen instead of the session's own."""

    def check(self, session: Session) -> None:
        """Refuse a session that this addition has nothing to offer to."""

    def begin(self, training: Training) -> None:
        """Before the first step of a session."""

    def replayed(self, task: int, epoch: int, batch: int, size: int) -> list[Ref]:
        """Examples of earlier tasks that join a batch of ``size``."""
        return []

    def penalty(
        self, session: Session, batch: SessionBatch, logits: Tensor | None
    ) -> Tensor | None:
        """What is added to the loss of a batch; ``logits`` are its scores where needed."""
        return None

    def adjust(self, training: Training, again: Callable[[], Tensor]) -> None:
        """Change the exact gradients in place; ``again`` recomputes them where the model is now."""

    def end(self, training: Training) -> None:
        """After the last step of a session, before the host finishes it; in evaluation mode."""

    @property
    def stands_for(self) -> Sequence[Ref]:
        """Training examples that it holds, or that what it holds was made of."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the addition, as plain data and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what ``state_dict`` gave."""


@dataclass(frozen=True)
class AdditionSettings(Checked, ABC):
    """Settings of one addition; ``make`` gives the addition itself."""

    name: str = ""
    """Which addition."""
    summary: ClassVar[str]

    @abstractmethod
    def make(self, seed: int) -> Addition:
        """The addition itself; ``seed`` is the run's."""


def check_composition(host: type[Host], additions: Sequence[Addition]) -> None:
    """Refuse additions that would do nothing, or undo each other, before anything runs."""
    for addition in additions:
        reason = _nothing_to_do(host, addition)
        if reason:
            raise ValueError(
                f"addition {addition.name!r} does not compose with host {host.name!r}: {reason}"
            )
    names = [addition.name for addition in additions]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"additions must be different, got {name!r} {names.count(name)} times")
    pulling = [addition.name for addition in additions if addition.pulls]
    if len(pulling) > 1:
        raise ValueError(f"one pull at most, got those of {' and '.join(pulling)}")
    if pulling and "gpm" in names:
        raise ValueError(
            f"addition 'gpm' does not compose with {pulling[0]!r}: a pull is added after the "
            "projection, and turns the step back into the protected directions"
        )


def check_session(session: Session, addition: Addition) -> None:
    """Refuse a session whose rules or offers do not fit, before its first step."""
    for group in session.groups:
        if addition.needs_exact and not group.rule.exact:
            raise ValueError(
                f"addition {addition.name!r} needs exact gradients, but group {group.name!r} has "
                f"rule {group.rule.name!r}"
            )
    if addition.needs_logits and (session.logits is None or session.loss_of_logits is None):
        raise ValueError(
            f"addition {addition.name!r} needs the scores of all classes seen, and the host's "
            "session offers none (logits, loss_of_logits)"
        )
    addition.check(session)


def _nothing_to_do(host: type[Host], addition: Addition) -> str:
    if host.trains == "never":
        return "nothing trains there"
    if addition.every_class and not host.masks_classes:
        return "its loss knows no classes to leave out, so it is over all of them anyway"
    if addition.joins and not host.joins_examples:
        return "its batches are made by a person's function, and no example can join them"
    if not addition.needs_past:
        return ""
    if host.trains == "first":
        return "only its first session trains, so there is no earlier one to protect"
    if not host.keeps_parameters and not (addition.in_weights and host.adds_to_layers):
        return "every session trains new parameters and freezes them, so nothing drifts"
    return ""
