"""A host: a model that learns one task after another and can be scored on each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from risegrad.continual.session import Session


@dataclass(frozen=True)
class Score:
    """Correct answers among all, on one task. Several processes add theirs up."""

    hits: int
    total: int

    @property
    def percent(self) -> float:
        """Hits in percent of the total."""
        return 100 * self.hits / self.total


class Host(ABC):
    """The loop calls ``begin``, trains the session if there is one, then ``finish``, ``score``.

    Between tasks the host's whole state is ``state_dict()``: tensors and plain data. ``begin`` is a
    function of that state and the seed alone, so a run that died in a session starts it again from
    the state before and only puts the trained parameters back.
    """

    name: ClassVar[str] = "host"
    Settings: ClassVar[type[Any]]
    """The dataclass of its own settings, where it is chosen by name."""
    default_rule: ClassVar[str] = "fo"
    """The rule where the settings name none."""
    main_score = "accuracy"
    scores_ahead: bool = False
    """Whether it can be scored on tasks before their turn: then all are before the stream, and the
    next one is after each session. Forward transfer needs that."""
    known: int = 0
    """How many of the first tasks are known from the start: their sessions take no step."""
    trains: ClassVar[Literal["every", "first", "never"]] = "every"
    """In which sessions something trains."""
    keeps_parameters: ClassVar[bool] = True
    """Whether what one session trained trains on in the next. If not, there is nothing that an
    addition could protect, and those that would are refused."""
    adds_to_layers: ClassVar[bool] = False
    """Whether new parameters of a session change layers that all earlier tasks go through."""
    masks_classes: ClassVar[bool] = True
    """Whether its loss is over the session's own classes unless asked for all seen."""

    @abstractmethod
    def begin(self, task: int) -> Session | None:
        """Make room for a task; None when nothing trains in this session."""

    def finish(self, task: int) -> None:  # noqa: B027 - nothing to do is the usual case
        """What comes after training: prototypes, merging, freezing. By default nothing."""

    @abstractmethod
    def score(self, tasks: Sequence[int]) -> dict[str, list[Score]]:
        """By name of the score: one entry per task."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the host between two sessions."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` returned."""

    def keep(self, folder: Path) -> None:
        """Leave what was trained in a folder; a host whose weights others can load adds those."""
        torch.save(self.state_dict(), folder / "state.pt")


def saved_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Copies of a module's parameters by name, for a state that later training must not change."""
    return {name: p.detach().cpu().clone() for name, p in module.named_parameters()}
