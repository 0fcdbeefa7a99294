"""A person's own model, data, loss and score: what one function gives, and the lab trains."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, device, nn

from risegrad.curvature.targets import choose_predict
from riselab.common.inputs import Local, Reading
from riselab.common.settings import Checked
from riselab.continual import metrics
from riselab.continual.devices import Devices
from riselab.continual.host import (
    Host,
    ParameterGroup,
    Ref,
    Score,
    Session,
    Stream,
    Task,
    TrainingBudget,
)
from riselab.continual.learning import History, Run
from riselab.continual.preflight import Known, complaint
from riselab.continual.rules import Rule
from riselab.continual.runs import HostDomain, Matrix, Work, read_run
from riselab.continual.training import Loop


@dataclass(frozen=True)
class OwnProblem:
    """What the function returns; it is called with a seed, and anew for every run.

    A batch is whatever ``loss`` and ``score`` understand: the lab moves its tensors to the device
    and hands it over, one batch per step.
    """

    model: nn.Module
    """The model before training; its parameters that require gradients are trained."""
    keep: Sequence[Any]
    """Batches of what must be kept; never trained on, a memory is made from them."""
    new: Sequence[Any]
    """Batches of what is to be learned; each is one step, in a new order in every epoch."""
    loss: Callable[[nn.Module, Any], Tensor]
    """The mean loss of a batch."""
    score: Callable[[nn.Module, Any], tuple[int, int]]
    """Right answers in a batch, and how many there are."""
    predict: Callable[[nn.Module, Any], Tensor] | None = None
    """A row of scores for each prediction in a batch, for a memory; None reads pairs of inputs and
    targets, and mappings with ``labels`` as transformers has them."""
    keep_test: Sequence[Any] = ()
    """Batches to score what is kept; empty: ``keep`` itself."""
    new_test: Sequence[Any] = ()
    """Batches to score what is learned; empty: ``new`` itself."""

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TypeError(f"model must be a torch module, got {type(self.model).__name__}")
        for name in ("keep", "new"):
            if not len(getattr(self, name)):
                raise ValueError(f"{name} must have at least one batch, got none")
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise ValueError("model must have parameters that require gradients, got none")


ProblemMaker = Callable[[int], OwnProblem]

GIVEN = "given:"
_given: dict[str, ProblemMaker] = {}


def problem_name(make: ProblemMaker) -> str:
    """A name, with a hash of its content, by which ``problem_maker`` finds the function."""
    content = hashlib.sha256(_source(make)).hexdigest()[:16]
    name = f"{GIVEN}{getattr(make, '__name__', 'function')}-{content}"
    _given[name] = make
    return name


def _source(make: ProblemMaker) -> bytes:
    """What the function does, the same in every process; of what is no function, its kind."""
    try:
        return inspect.getsource(make).encode()
    except (OSError, TypeError):  # typed into an interpreter, or made by exec
        code = getattr(make, "__code__", None)
        return _compiled(code) if isinstance(code, CodeType) else repr(type(make)).encode()


def _compiled(code: CodeType) -> bytes:
    inner = (_compiled(c) if isinstance(c, CodeType) else repr(c).encode() for c in code.co_consts)
    return b"\0".join([code.co_code, repr(code.co_names).encode(), *inner])


def problem_maker(name: str) -> ProblemMaker:
    """The function of this name: ``module:function``, or one that ``problem_name`` registered."""
    if name.startswith(GIVEN):
        if name not in _given:
            raise ValueError(f"{name!r} is a function of another process; pass it again")
        return _given[name]
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"a function must be named as module:function, got {name!r}")
    if os.getcwd() not in sys.path:  # the script of a command does not look in its own folder
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{name!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"{name!r} must be a function, got {type(found).__name__}")
    make: ProblemMaker = found
    return make


def made_problem(name: str, seed: int) -> OwnProblem:
    """The problem with this seed; an error says what the function gave instead."""
    found = problem_maker(name)(seed)
    if not isinstance(found, OwnProblem):
        raise TypeError(f"{name} must return an OwnProblem, got {type(found).__name__}")
    return found


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
    summary = "your own model, by a function that makes it with its data"
    masks_classes = False
    joins_examples = False
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
                "score must return the number of right answers and of all answers, at least one; "
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


HOSTS: dict[str, type[OwnHost]] = {OwnHost.name: OwnHost}


@dataclass(frozen=True)
class OwnStreamSettings(Checked):
    """Which function makes the model and its data."""

    problem: str
    """``module:function``; the function takes a seed and returns an ``OwnProblem``."""
    name: str = "own"
    """The name in records."""


@dataclass(frozen=True)
class OwnRun(Run):
    """A run of an own model; the head's budget is not used."""

    stream: OwnStreamSettings
    loop: Loop = field(default_factory=lambda: Loop(batch=1))
    """A step takes one of the function's own batches: ``loop.batch`` is 1."""
    domain: Literal["own"] = "own"

    def reads(self) -> dict[str, Reading]:
        """The file of the function's module, where it is one."""
        if self.stream.problem.startswith(GIVEN):
            return {}
        module = sys.modules.get(problem_maker(self.stream.problem).__module__)
        file = getattr(module, "__file__", None)
        return {"stream.problem.module": Local(file)} if file else {}


class OwnDomain(HostDomain[OwnRun]):
    """Models that a function makes, with their data."""

    def read(self, plain: Mapping[str, Any]) -> OwnRun:
        loop = {"batch": 1} | dict(plain.get("loop", {}))
        settings = read_run(OwnRun, {**plain, "loop": loop}, HOSTS)
        if settings.loop.batch != 1:
            raise ValueError(
                f"loop.batch must be 1, a step takes one batch of the function; got {loop['batch']}"
            )
        return settings

    examples = "batches"
    hosts = HOSTS

    def missing(self, settings: OwnRun, known: Known) -> list[str]:
        return complaint(lambda: made_problem(settings.stream.problem, settings.seed))

    def no_data(self, stream: OwnStreamSettings) -> list[str]:
        """A run's seed is needed to see that; ``missing`` does it."""
        return []

    def work(self, settings: OwnRun) -> Work:
        stream = self.host(settings, settings.devices).stream
        tests = [len(task.test) for task in stream]
        new = len(stream[1].train)
        return Work([0, new], tests, new * settings.adapter.epochs, 2 * sum(tests))

    def small(self, settings: OwnRun) -> OwnRun:
        return settings

    def score(self, host: OwnHost) -> int:
        host.score(range(2))
        return sum(len(task.test) for task in host.stream)

    def host(self, settings: OwnRun, devices: Devices) -> OwnHost:
        rule = settings.rule if settings.rule.name else Rule(OwnHost.default_rule)
        problem = made_problem(settings.stream.problem, settings.seed)
        return OwnHost(problem, rule, settings.adapter, devices)

    def summarize(self, settings: OwnRun, matrix: Matrix, union: list[float]) -> metrics.Summary:
        return metrics.summary_domains(matrix)

    def more(self, found: dict[str, Any], host: OwnHost, history: History) -> None:
        last = history.scores[-1][host.main_score]
        for task, (_, answers) in zip(found["tasks"], last, strict=True):
            task["answers"] = answers


DOMAIN = OwnDomain()
