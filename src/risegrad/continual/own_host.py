"""The host of a person's own model: what is kept is known, what is new is one session."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, device, nn

from risegrad.common.declared_fields import Checked
from risegrad.continual.devices import Devices
from risegrad.continual.host import Host, Score
from risegrad.continual.own_problem import OwnProblem
from risegrad.continual.session import ParameterGroup, Ref, Session
from risegrad.continual.stream import Stream, Task
from risegrad.continual.training_budget import TrainingBudget
from risegrad.continual.update_rules import Rule
from risegrad.curvature.targets import choose_predict


@dataclass(frozen=True)
class OwnBatch:
    """One batch as the person's functions take it. It counts as one example of the loop."""

    content: Any

    def __len__(self) -> int:
        return 1

    def to(self, target: device) -> OwnBatch:
        """The same on another device, as far as it is made of tensors."""
        return OwnBatch(_moved(self.content, target))


def _moved(content: Any, target: device) -> Any:
    if hasattr(content, "to"):
        return content.to(target)
    if isinstance(content, dict):
        return {key: _moved(value, target) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(_moved(value, target) for value in content)
    return content


@dataclass(frozen=True)
class OwnItems:
    """Batches by task and number; a ``Ref`` names a whole batch here."""

    tasks: tuple[Sequence[Any], ...]
    at_hand: ClassVar[bool] = True
    largest: ClassVar[int] = 1

    def fetch(self, refs: Sequence[Ref], epoch: int) -> OwnBatch:
        """The batch that is asked for."""
        ((task, number),) = refs
        return OwnBatch(self.tasks[task][number])


@dataclass(frozen=True)
class OwnHostSettings(Checked):
    """The host of an own model has no settings but its name."""

    name: str = ""
    """Which host."""


class OwnHost(Host):
    """All parameters of the model that require gradients are one group."""

    name = "own-model"
    summary = "a model of one's own, by a function that makes it with its data"
    masks_classes = False
    scores_ahead = True
    known = 1
    Settings = OwnHostSettings

    def __init__(
        self, problem: OwnProblem, rule: Rule, budget: TrainingBudget, devices: Devices
    ) -> None:
        self.problem, self.rule, self.budget, self.devices = problem, rule, budget, devices
        self.model = problem.model.to(devices.device)
        self.trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.stream = own_stream(problem)

    def begin(self, task: int) -> Session:
        problem = self.problem
        layers = self.model.named_modules()
        return Session(
            task=task,
            examples=len(self.stream[task].train),
            groups=(ParameterGroup("model", self.trained, self.budget, self.rule),),
            module=self.model,
            items=OwnItems((problem.keep, problem.new)),
            loss=lambda batch, every: problem.loss(self.model, batch.content),
            predictions=lambda batch: self._predictions(batch.content),
            linears={f"model.{n}.weight": m for n, m in layers if isinstance(m, nn.Linear)},
        )

    def _predictions(self, content: Any) -> Tensor:
        if self.problem.predict is not None:
            return self.problem.predict(self.model, content)
        return choose_predict(self.model, content, nn.CrossEntropyLoss())(self.model, content)[0]

    def score(self, tasks: Sequence[int]) -> dict[str, list[Score]]:
        self.model.eval()
        return {"accuracy": [self._score(list(self.stream[task].test)) for task in tasks]}

    @torch.no_grad()
    def _score(self, batches: Sequence[Any]) -> Score:
        counts = [0, 0]
        for batch in batches:
            right, total = self.problem.score(self.model, _moved(batch, self.devices.device))
            counts[0] += int(right)
            counts[1] += int(total)
        if not 0 <= counts[0] <= counts[1] or not counts[1]:
            raise ValueError(
                "score must give right answers and how many there are, at least one; "
                f"got {counts[0]} of {counts[1]}"
            )
        return Score(*counts)

    def state_dict(self) -> dict[str, Any]:
        return {name: value.detach().cpu().clone() for name, value in self._state().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state)

    def _state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.model.state_dict()
        return found


def own_stream(problem: OwnProblem) -> Stream[Sequence[Any]]:
    """Two tasks: what is kept, which is known, and what is new."""
    keep = Task("keep", (), problem.keep, (), problem.keep_test or problem.keep)
    new = Task("new", (), problem.new, (), problem.new_test or problem.new)
    return Stream("own", (keep, new), known=1)
