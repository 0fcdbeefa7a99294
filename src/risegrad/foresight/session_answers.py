"""What a session's loss is made of: scores and labels, caught where the cross-entropy gets them.

A host hands over a loss and not what it predicts, but curvature needs both. Every host, also one
from elsewhere, ends in torch's ``cross_entropy``; what goes in there are its predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

from risegrad.continual.session import Ref, Session, SessionBatch
from risegrad.curvature.operators.batch_forms import IGNORED

Plain = dict[str, Tensor]
"""A batch by the names of its fields, which curvature code knows how to move and to count."""


class Caught(TorchFunctionMode):
    """Scores and targets of every cross-entropy while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is cross_entropy:
            scores = args[0] if args else options["input"]
            target = args[1] if len(args) > 1 else options["target"]
            self.calls.append((scores, target))
        return func(*args, **options)


def as_plain_batch(batch: SessionBatch) -> Plain:
    """A batch as a mapping."""
    return {field.name: getattr(batch, field.name) for field in fields(batch)}  # type: ignore[arg-type]


class SessionReader:
    """Reads a session's batches: predictions over the classes before it, and their labels."""

    def __init__(self, session: Session, masks_classes: bool) -> None:
        self.session = session
        # Rows of new classes are random before the session: no part of what was learned.
        self.known = session.seen_before if masks_classes else 0
        self._kind: Callable[..., SessionBatch] | None = None

    def on(self, session: Session) -> SessionReader:
        """The same for the task's session as it was opened another time."""
        other = SessionReader(session, self.known > 0)
        other._kind = self._kind
        return other

    def batches(self, refs: Sequence[Ref], size: int) -> list[Plain]:
        """The named training examples, in batches."""
        found = []
        for low in range(0, len(refs), size):
            batch = self.session.items.fetch(refs[low : low + size], self.session.epochs)
            self._kind = type(batch)
            found.append(as_plain_batch(batch))
        return found

    def batch(self, plain: Plain) -> SessionBatch:
        """The mapping as the session's own kind of batch again."""
        assert self._kind is not None
        return self._kind(**plain)

    def answers(self, module: nn.Module, plain: Plain) -> tuple[Tensor, Tensor]:
        """Scores and labels, one row for each prediction that counts."""
        with Caught() as caught:
            self.session.loss(self.batch(plain), True)
        if not caught.calls:
            raise ValueError(
                "the session's loss must be a cross-entropy to be diagnosed, and it calls none"
            )
        scores, target = caught.calls[-1]
        if self.known:
            scores = scores[..., : self.known]
        counts = target != IGNORED
        return scores[counts], target[counts]
