"""A stream of tasks, one session after the other, and the host that learns them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor, device, nn
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer

from riselab.common.settings import Checked, Count, NonNegative, Positive, Share
from riselab.continual.rules import Rule


class Split(Protocol):
    """Data of one task for one purpose. What an item is, the domain's host knows."""

    def __len__(self) -> int: ...


S = TypeVar("S", bound=Split)


@dataclass(frozen=True)
class Task(Generic[S]):
    """One task. ``classes`` are the names of its labels, in the order of the labels."""

    name: str
    classes: tuple[str, ...]
    train: S
    validation: S
    test: S

    def sizes(self) -> dict[str, int]:
        """How many examples each split has."""
        return {
            "train": len(self.train),
            "validation": len(self.validation),
            "test": len(self.test),
        }


@dataclass(frozen=True)
class Stream(Generic[S]):
    """Tasks in their order, and what a reader of the record has to know about them."""

    name: str
    tasks: tuple[Task[S], ...]
    notes: tuple[str, ...] = field(default=())
    planned: tuple[str, ...] = field(default=())
    """Names of all tasks of the order, those left out on purpose among them; empty: those that
    come."""
    known: int = 0
    """How many of the first tasks are known from the start: they are scored and never trained."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(f"stream {self.name!r} must have at least one task, got none")
        if not 0 <= self.known < len(self.tasks):
            raise ValueError(
                f"stream.known must leave at least one of the {len(self.tasks)} tasks to learn, "
                f"got {self.known}"
            )

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task[S]:
        return self.tasks[index]

    def __iter__(self) -> Iterator[Task[S]]:
        return iter(self.tasks)


@dataclass(frozen=True)
class TrainingBudget(Checked):
    """One group's training in each session, with a fresh optimizer every time."""

    epochs: Count = 10
    """Passes over the session's data. The group with the smaller number stops earlier."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """As torch has them."""
    lr: Positive = 0.01
    """Learning rate at the start of each session."""
    momentum: Share = 0.9
    """Of SGD."""
    weight_decay: NonNegative = 5e-4
    """As the optimizer understands it: decoupled with adamw, else part of the gradient."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Of the learning rate, epoch by epoch within a session; ``cosine`` falls to zero."""
    clip: NonNegative = 0.0
    """Bound on the l2 norm of the group's gradient, before any shaping; 0 means none."""

    def unused(self) -> dict[str, str]:
        """Settings away from their defaults that the optimizer would not look at, and why."""
        if self.optimizer == "sgd" or self.momentum == TrainingBudget.momentum:
            return {}
        reason = f"is not used by optimizer {self.optimizer!r} but by sgd; got {self.momentum}"
        return {"momentum": reason}

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [round(TrainingBudget(epochs=4, lr=1.0).lr_at(epoch), 3) for epoch in range(4)]
        [1.0, 0.854, 0.5, 0.146]
        """
        if self.schedule == "constant":
            return self.lr
        return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2

    def make_optimizer(self, parameters: Iterable[Parameter]) -> Optimizer:
        """A new optimizer for these parameters."""
        if self.optimizer == "sgd":
            return SGD(parameters, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = Adam if self.optimizer == "adam" else AdamW
        return kind(parameters, self.lr, weight_decay=self.weight_decay)


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
    weight: Callable[[Any], float] = len
    """How many answers the loss of a batch is the mean over."""
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
    joins_examples: ClassVar[bool] = True
    """Whether a batch can hold any examples of this task and those before."""
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

    def data_bytes(self, refs: Sequence[Ref]) -> int | None:
        """What these training examples take as data: one byte for each colour of a pixel, UTF-8 of
        a text; None where the host does not know."""
        return None

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
