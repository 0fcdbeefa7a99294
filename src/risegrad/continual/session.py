"""What a host hands to the loop for one task: groups of parameters, data, and a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor, device, nn
from torch.nn import Parameter

from risegrad.continual.training_budget import TrainingBudget
from risegrad.continual.update_rules import Rule

Report = Callable[[dict[str, Any]], None]
"""Called with what changed: task, tasks, epoch, epochs, batch, batches, loss, union accuracy."""


def silent(news: dict[str, Any]) -> None:
    """Say nothing."""


Ref = tuple[int, int]
"""One training example: (task, index in that task's training split)."""


class SessionBatch(Protocol):
    """What a loss is computed on; the loop only counts it and moves it."""

    def __len__(self) -> int: ...

    def to(self, target: device) -> SessionBatch:
        """The same batch on another device."""


B_co = TypeVar("B_co", covariant=True, bound=SessionBatch)


class Items(Protocol[B_co]):
    """Training examples by reference. Picklable, so that worker processes can fetch them."""

    at_hand: ClassVar[bool]
    """Whether they are in memory, maybe on a device: then nothing is gained by worker processes,
    and tensors of a device must not be touched there."""

    def fetch(self, refs: Sequence[Ref], epoch: int) -> B_co:
        """The named examples as one batch; ``epoch`` decides random views."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that train together: one optimizer, one budget, one rule."""

    name: str
    parameters: dict[str, Parameter]
    budget: TrainingBudget
    rule: Rule


@dataclass(frozen=True)
class Session:
    """One task's training. ``loss(batch, every_class)`` is the mean over the batch.

    ``every_class`` asks for a loss over all classes seen so far instead of the task's own: replayed
    examples of earlier tasks need it.
    """

    task: int
    examples: int
    """How many training examples the task has; one epoch passes over each once."""
    groups: tuple[ParameterGroup, ...]
    module: nn.Module
    """Holds the trained modules: put in training mode, and its buffers are guarded."""
    items: Items[SessionBatch]
    loss: Callable[[Any, bool], Tensor]
    logits: Callable[[Any], Tensor] | None = None
    """Scores of all classes seen so far, for additions that need them (distillation)."""
    loss_of_logits: Callable[[Tensor, Any, bool], Tensor] | None = None
    """``loss`` from scores that are there already, so that one pass serves both."""
    predictions: Callable[[Any], Tensor] | None = None
    """What a memory keeps ``of = "predictions"``: a row of scores for each prediction that counts,
    over the classes of the session's own loss."""
    features: Callable[[Any], Tensor] | None = None
    """What a memory keeps ``of = "features"``: a row for each, before the classifier."""
    seen_before: int = 0
    """How many classes came before this task."""
    outside: dict[str, int] = field(default_factory=dict)
    """By full name of a parameter: how many of its first rows (the classes before this task) only a
    loss over all classes reaches. Where the loss does not, no rule moves them."""
    lengths: Sequence[int] | None = None
    """Of the training examples: those of about one length share a batch. None: any with any."""
    linears: dict[str, nn.Linear] = field(default_factory=dict)
    """Trained linear layers by the name of their weight, for additions that look at inputs."""
    later_groups: tuple[ParameterGroup, ...] = ()
    """As sessions after this one train, where this one is taught otherwise."""

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Those of all groups, by full name: the group's and the parameter's own."""
        return {
            f"{group.name}.{name}": parameter
            for group in self.groups
            for name, parameter in group.parameters.items()
        }

    def taught(self, budget: TrainingBudget) -> Session:
        """The same with plain first-order steps and another budget for all groups."""
        groups = [replace(g, budget=budget, rule=replace(g.rule, name="fo")) for g in self.groups]
        return replace(self, groups=tuple(groups), later_groups=self.groups)

    @property
    def as_later(self) -> Session:
        """As the host began it: what is refused later must be refused now."""
        return replace(self, groups=self.later_groups or self.groups)

    @property
    def epochs(self) -> int:
        """The epochs of the group that trains longest."""
        return max((group.budget.epochs for group in self.groups), default=0)

    def of_no_epochs(self) -> Session:
        """The same without training, for a task that is known: additions still see its data."""
        groups = (replace(group, budget=replace(group.budget, epochs=0)) for group in self.groups)
        return replace(self, groups=tuple(groups))


@contextmanager
def differentiable(parameters: Iterable[Parameter]) -> Iterator[None]:
    """All of them require gradients for a moment: some groups stopped, some never did."""
    before = [(parameter, parameter.requires_grad) for parameter in parameters]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, required in before:
            parameter.requires_grad_(required)
