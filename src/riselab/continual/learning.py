"""The loop over a stream: learn a task, score it and all before it, keep a checkpoint, continue.

Tasks that are known from the start come first. Nothing is trained in their sessions, so that all of
them are scored once, before any training.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from risegrad.common.seal import digest
from riselab.common.inputs import Reading, look_at
from riselab.common.settings import essence, without
from riselab.continual.additions.addition import Addition, check_composition
from riselab.continual.additions.keeping import Keep, Keeps
from riselab.continual.additions.memory import LooksBack, MemorySettings, RunMemory, WithMemory
from riselab.continual.checkpoints import Checkpoints, Origin
from riselab.continual.devices import Devices
from riselab.continual.host import Host, Report, Score, Session, Stream, TrainingBudget, silent
from riselab.continual.rules import Rule
from riselab.continual.training import Loop, SessionTraining


@dataclass
class History:
    """What a run has to show so far; plain data."""

    scores: list[dict[str, list[tuple[int, int]]]] = field(default_factory=list)
    """Per session, by name of the score: (hits, total) of every task so far."""
    before: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """The same of all tasks before the first session, where the host can be scored then."""
    line: list[dict[str, Any]] = field(default_factory=list)
    """The same of all tasks, for each ``share`` of the way back to where training began."""
    losses: list[dict[str, float]] = field(default_factory=list)
    trainable: dict[str, int] = field(default_factory=dict)
    """Parameters per group, the largest over the sessions."""
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"train": [], "score": []})
    memory_bytes: list[int] = field(default_factory=list)
    """Of a run that remembers: the size of its memory after each session."""
    data_bytes: list[int] = field(default_factory=list)
    """Of such a run: the size of the data that this stands for."""


class Learner:
    """A host on its way through a stream of ``tasks`` tasks."""

    def __init__(
        self,
        host: Host,
        tasks: int,
        *,
        loop: Loop | None = None,
        seed: int = 0,
        additions: Sequence[Addition] = (),
        devices: Devices | None = None,
        checkpoints: Checkpoints | None = None,
        report: Report = silent,
    ) -> None:
        check_composition(type(host), additions)
        self.host, self.tasks, self.seed, self.additions = host, tasks, seed, additions
        self.loop = loop or Loop()
        self.devices = devices or Devices(self.loop.precision, self.loop.device)
        self.report = report if self.devices.main else silent
        self.history = History()
        self._checkpoints = checkpoints
        self._saved = time.monotonic()
        self._began: dict[str, Tensor] | None = None
        if self.loop.interpolate and not host.keeps_parameters:
            raise ValueError(
                f"loop.interpolate needs a host that trains the same weights in every session, got "
                f"{host.name!r}"
            )

    def run(self) -> History:
        """Learn what is left of the stream; picks up where a checkpoint says."""
        accelerators = range(torch.accelerator.device_count())
        with torch.random.fork_rng(devices=accelerators):
            state = self._checkpoints.latest() if self._checkpoints else None
            if state is not None:
                self._restore(state)
            if self.host.known and not self.history.scores:
                self._known_tasks()
            if self.host.scores_ahead and not self.history.before:
                self.history.before = _counts(self.host.score(range(self.tasks)))
            for task in range(len(self.history.scores), self.tasks):
                self._task(task, state)
                state = None
        if kept := [addition for addition in self.additions if isinstance(addition, LooksBack)]:
            self.history.memory_bytes = _added([k.sizes for k in kept])
            self.history.seconds["remember"] = _added([k.seconds for k in kept])
        else:  # what is kept are the examples themselves
            self.history.memory_bytes = list(self.history.data_bytes)
        return self.history

    def _known_tasks(self) -> None:
        """Additions may look at each; one scoring serves as the rows of all."""
        for task in range(self.host.known):
            self.report({"task": task + 1, "tasks": self.tasks})
            started = time.perf_counter()
            session = begin_session(self.host, task, self.loop)
            if session is not None:
                self._train(session, {}, None)
            self.host.finish(task)
            self.history.seconds["train"].append(time.perf_counter() - started)
            self.history.seconds["score"].append(0.0)
        started = time.perf_counter()
        ahead = self.host.scores_ahead
        counts = _counts(self.host.score(range(self.tasks if ahead else self.host.known)))
        self.history.before = counts if ahead else {}
        for task in range(self.host.known):
            self.history.scores.append(
                {name: row[: task + 1 + ahead] for name, row in counts.items()}
            )
        self.history.seconds["score"][-1] = time.perf_counter() - started
        self._save({"between": self._between()})

    def _task(self, task: int, resumed: dict[str, Any] | None) -> None:
        self.report({"task": task + 1, "tasks": self.tasks})
        before = self._between()
        started = time.perf_counter()
        session = begin_session(self.host, task, self.loop)
        spent = 0.0
        if session is not None:
            spent = self._train(session, before, resumed)
        self.host.finish(task)
        trained = time.perf_counter()
        self._score(task)
        if session is not None and task == self.tasks - 1 and self._began is not None:
            self._interpolate(session.parameters, self._began)
        self.history.seconds["train"].append(spent + trained - started)
        self.history.seconds["score"].append(time.perf_counter() - trained)
        self._save({"between": self._between()})

    def _train(
        self, session: Session, before: dict[str, Any], resumed: dict[str, Any] | None
    ) -> float:
        """The epochs that are left; returns the seconds that a run before this one spent."""
        training = SessionTraining(session, self.loop, self.devices, self.additions, self.seed)
        self._count(session)
        if self.loop.interpolate and self._began is None and session.epochs:
            self._began = {n: p.detach().cpu().clone() for n, p in session.parameters.items()}
        first, earlier = 0, 0.0
        started = time.perf_counter()
        if resumed is not None and "within" in resumed:
            first, earlier = resumed["epoch"], resumed["seconds"]
            training.load_state_dict(resumed["within"])
        for epoch in range(first, session.epochs):
            self.report({"epoch": epoch + 1, "epochs": session.epochs})
            loss = training.epoch(epoch, self.report)
            self.history.losses.append({"task": session.task, "epoch": epoch, "loss": loss})
            self.report({"loss": loss})
            if time.monotonic() - self._saved >= self.loop.checkpoint_seconds:
                spent = earlier + time.perf_counter() - started
                within = {"within": training.state_dict(), "epoch": epoch + 1, "seconds": spent}
                self._save({"between": before, "losses": list(self.history.losses)} | within)
        session.module.eval()
        for addition in self.additions:
            addition.end(training)
        held = {ref for addition in self.additions for ref in addition.stands_for}
        size = self.host.data_bytes(sorted(held)) if held else None
        if size is not None:
            self.history.data_bytes.append(size)
        return earlier

    def _score(self, task: int) -> None:
        ahead = 1 if self.host.scores_ahead else 0
        scores = self.host.score(range(min(task + 1 + ahead, self.tasks)))
        self.history.scores.append(_counts(scores))
        main = scores[self.host.main_score][: task + 1]
        union = Score(sum(s.hits for s in main), sum(s.total for s in main))
        self.report({"union": union.percent})

    @torch.no_grad()
    def _interpolate(self, parameters: dict[str, Parameter], began: dict[str, Tensor]) -> None:
        """Score on the line between the two ends, and stay at the end of it."""
        ended = {name: p.detach().clone() for name, p in parameters.items()}
        for share in self.loop.interpolate:
            for name, p in parameters.items():
                p.copy_(torch.lerp(began[name].to(p.device), ended[name], share))
            counts = _counts(self.host.score(range(self.tasks)))
            self.history.line.append({"share": share, "scores": counts})
        for name, p in parameters.items():
            p.copy_(ended[name])

    def _count(self, session: Session) -> None:
        for group in session.groups:
            size = sum(p.numel() for p in group.parameters.values())
            known = self.history.trainable.get(group.name, 0)
            self.history.trainable[group.name] = max(known, size)

    def _between(self) -> dict[str, Any]:
        """Everything at a point between two tasks."""
        return deepcopy(vars(self.history)) | {
            "host": self.host.state_dict(),
            "additions": [addition.state_dict() for addition in self.additions],
            "began": self._began,
        }

    def _save(self, state: dict[str, Any]) -> None:
        if self._checkpoints is not None and self.devices.main:
            self._checkpoints.save(state)
        self._saved = time.monotonic()

    def _restore(self, state: dict[str, Any]) -> None:
        between = state["between"]
        self.host.load_state_dict(between["host"])
        for addition, saved in zip(self.additions, between["additions"], strict=True):
            addition.load_state_dict(saved)
        self._began = between.get("began")  # absent in checkpoints of before
        known = {one.name for one in fields(History)} & between.keys()
        self.history = History(**{name: between[name] for name in known})
        self.history.losses = state.get("losses", self.history.losses)


def begin_session(host: Host, task: int, loop: Loop) -> Session | None:
    """The session of a task as a run begins it: known tasks take no step, the first has a budget
    of its own where ``loop.first`` says so."""
    session = host.begin(task)
    if session is None:
        return None
    if task < host.known:
        return session.of_no_epochs()
    if task == 0 and loop.first.epochs and session.epochs:
        return session.taught(loop.first)
    return session


def _added(lists: Sequence[list[Any]]) -> list[Any]:
    return [sum(together) for together in zip(*lists, strict=True)]


def _counts(scores: dict[str, list[Score]]) -> dict[str, list[tuple[int, int]]]:
    return {name: [(s.hits, s.total) for s in row] for name, row in scores.items()}


@dataclass(frozen=True)
class Run:
    """Everything that a run depends on; those of a domain say more about stream and model."""

    stream: Any
    host: Any
    """The settings of the host, with its ``name``."""
    rule: Rule = field(default_factory=Rule)
    adapter: TrainingBudget = field(default_factory=TrainingBudget)
    """Of adapters, of LoRA, or of all weights."""
    head: TrainingBudget = field(default_factory=TrainingBudget)
    """Of a classifier beside them."""
    memory: MemorySettings = field(default_factory=MemorySettings)
    loop: Loop = field(default_factory=Loop)
    additions: tuple[Any, ...] = ()
    seed: int = 0
    """Of initialization, batches, augmentation, dropout and draws; what chooses and orders classes
    and examples has its own."""

    def reads(self) -> dict[str, Reading]:
        """What the run reads, by the name of the setting."""
        return {}

    @property
    def devices(self) -> Devices:
        """Where it computes."""
        return Devices(self.loop.precision, self.loop.device)


class HostKit:
    """What every host works with: the stream, and the run's rule, budgets, loop and seed."""

    def __init__(self, settings: Run, stream: Stream[Any], devices: Devices) -> None:
        self.stream, self.devices = stream, devices
        self.rule, self.adapter, self.head = settings.rule, settings.adapter, settings.head
        self.loop, self.seed = settings.loop, settings.seed

    def named_rule(self, default: str) -> Rule:
        """The rule of the settings, or the host's own where they name none."""
        return self.rule if self.rule.name else replace(self.rule, name=default)


class KitHost(Host):
    """A host that is made of a kit. Several processes score a part of each task's examples."""

    kit: Any

    def __init__(self, kit: Any, settings: Any) -> None:
        self.kit, self.settings = kit, settings
        self.stream, self.known = kit.stream, kit.stream.known

    @abstractmethod
    def hits(self, task: int, split: str) -> tuple[Iterable[str], Tensor]:
        """Names of the scores; and right answers by each, with the number of all in the end."""

    def score(self, tasks: Sequence[int]) -> dict[str, list[Score]]:
        split = self.kit.loop.score_on
        scores: dict[str, list[Score]] = {}
        for task in tasks:
            names, counts = self.hits(task, split)
            *hits, total = self.kit.devices.total(counts).tolist()
            if not total:
                raise ValueError(f"{self.stream[task].name} has no {split} examples to score on")
            for name, count in zip(names, hits, strict=True):
                scores.setdefault(name, []).append(Score(count, total))
        return scores


def made_additions(settings: Run) -> list[Addition]:
    """The additions of a run, and behind them what they or the rule keep of each session.

    That comes last: a session's change may be taken back in part before anything is kept of it.
    """
    made: list[Addition] = [addition.make(settings.seed) for addition in settings.additions]
    rule = settings.rule
    if rule.kind.needs == "examples":
        made.append(Keep(settings.seed, pull=rule.pull, budget=rule.budget, damping=rule.damping))
    made.sort(key=lambda addition: isinstance(addition, Keeps))
    for keeps in made:
        if isinstance(keeps, Keeps):
            keeps.settings = settings.memory
    users = [addition for addition in made if isinstance(addition, WithMemory)]
    if not users and rule.kind.needs != "memory":
        return made
    kept = RunMemory(settings.memory, settings.seed)
    for user in users:
        user.kept = kept
    return [*made, kept]


def learn_stream(
    host: Host, tasks: int, settings: Run, devices: Devices, folder: Path, report: Report
) -> History:
    """Take a host through its stream; checkpoints are in ``folder/checkpoints``."""
    history = Learner(
        host,
        tasks,
        loop=settings.loop,
        seed=settings.seed,
        additions=made_additions(settings),
        devices=devices,
        checkpoints=Checkpoints(folder / "checkpoints", origin_of(settings)),
        report=report,
    ).run()
    if settings.loop.keep_weights and devices.main:
        weights = folder / "weights"
        weights.mkdir(exist_ok=True)
        host.keep(weights)
    return history


def origin_of(settings: Any) -> Origin:
    """What a checkpoint must agree with. What is read counts, not where it lies."""
    readings = settings.reads()
    return Origin(digest(without(essence(settings), readings)), look_at(readings))
