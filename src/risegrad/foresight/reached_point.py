"""A run at one point of its stream: the host between two sessions, and the session that is next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from risegrad.continual.additions.addition import Addition
from risegrad.continual.additions.run_memory import made_additions
from risegrad.continual.devices import Devices
from risegrad.continual.host import Host
from risegrad.continual.run_checkpoints import Checkpoints
from risegrad.continual.runs import make_host
from risegrad.continual.session import Report, silent
from risegrad.continual.session_training import SessionTraining, StepTaken
from risegrad.continual.stream_learning import Learner, begin_session, origin_of
from risegrad.core.saved_state import KEY

CHECKPOINTS = "checkpoints"


class UnscoredLearner(Learner):
    """Takes a host through the first tasks of its stream, and looks at no score on the way."""

    def __init__(self, host: Host, tasks: int, **options: Any) -> None:
        super().__init__(host, tasks, **options)
        self.history.before = {"": []}  # as if it had been scored before the stream

    def _score(self, task: int) -> None:
        self.history.scores.append({})


@dataclass
class ReachedPoint:
    """A host that has learned the tasks before ``task`` (from 0) as its run would."""

    settings: Any
    host: Any
    devices: Devices
    additions: list[Addition]
    task: int
    state: dict[str, Any]
    """of host and additions between the two sessions"""
    within: dict[str, Any] | None = None
    """where the run is inside the session, if it is: parameters and optimizers"""
    epoch: int = 0
    """of the session, from 0, with which the run goes on"""

    @staticmethod
    def reach(
        settings: Any, task: int, run: Path | None, own: Path, report: Report = silent
    ) -> ReachedPoint:
        """Session ``task`` (from 1; 0: where the run is) of the run in the folder ``run``.

        What of the earlier tasks the run's checkpoint does not have is learned, with checkpoints
        in ``own``; the run's folder is only read.
        """
        devices = Devices(settings.loop.precision, settings.loop.device)
        origin = origin_of(settings)
        here = run and (run / CHECKPOINTS).is_dir()
        state = Checkpoints(run / CHECKPOINTS, origin).latest() if run and here else None
        done = len(state["between"]["scores"]) if state else 0
        wanted = task - 1 if task else (done or 1)
        if wanted < 1:
            raise ValueError(
                f"task must be 2 or more, got {task}: before the first session there is nothing "
                "to keep"
            )
        host: Any = make_host(settings, devices)
        if wanted >= len(host.kit.stream):
            raise ValueError(f"task must be at most {len(host.kit.stream)}, got {wanted + 1}")
        checkpoints = Checkpoints(own / f"until-{wanted + 1}", origin)
        if state and done <= wanted and checkpoints.latest() is None:
            checkpoints.save(state if done < wanted else {"between": state["between"]})
        additions = made_additions(settings)
        learner = UnscoredLearner(
            host, wanted, loop=settings.loop, seed=settings.seed, additions=additions,
            devices=devices, checkpoints=checkpoints, report=report,
        )  # fmt: skip
        learner.run()
        inside = state is not None and done == wanted and "within" in state
        within, epoch = (state["within"], state["epoch"]) if state and inside else (None, 0)
        state_now = state_of(host, additions)
        return ReachedPoint(settings, host, devices, additions, wanted, state_now, within, epoch)

    @property
    def tasks(self) -> int:
        """How many tasks the stream has."""
        return len(self.host.kit.stream)

    def training(self, settings: Any = None, seed: int | None = None) -> SessionTraining:
        """The session as a run with these settings (the point's own) begins it, or is in it.

        Always from the same state: what an earlier one trained is put back.
        """
        chosen = settings or self.settings
        # Copies: what is loaded may become the parameters themselves, which then train.
        state = deepcopy(self.state)
        self.host.load_state_dict(state["host"])
        for addition, kept in zip(self.additions, state["additions"], strict=True):
            addition.load_state_dict(kept)
        kit = self.host.kit
        kit.rule, kit.adapter, kit.head = chosen.rule, chosen.adapter, chosen.head
        session = begin_session(self.host, self.task, chosen.loop)
        if session is None:
            raise ValueError(f"session {self.task + 1} of this host trains nothing")
        own = self.settings.seed if seed is None else seed
        training = SessionTraining(session, chosen.loop, self.devices, self.additions, own)
        if self.within is not None:
            training.load_state_dict(self._within(training, chosen))
        return training

    def _within(self, training: SessionTraining, chosen: Any) -> dict[str, Any]:
        """The state inside the session; another row goes on with optimizers of its own."""
        # A copy: torch loads an optimizer's tensors as they are, and steps change them.
        kept = deepcopy(self.within or {})
        fresh = training.state_dict()["optimizers"]
        if replace(chosen, seed=self.settings.seed) != self.settings:
            return kept | {"optimizers": fresh}
        found = {name: with_draws_of(kept["optimizers"][name], own) for name, own in fresh.items()}
        return kept | {"optimizers": found}

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Global random numbers come back afterwards."""
        with torch.random.fork_rng(devices=range(torch.accelerator.device_count())):
            yield


def steps_from(training: SessionTraining, epoch: int) -> Iterator[tuple[int, StepTaken]]:
    """All steps of the session from this epoch on, each with its epoch, taken as asked for."""
    for number in range(epoch, training.session.epochs):
        for taken in training.steps(number):
            yield number, taken


def with_draws_of(kept: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """A saved optimizer with all that it has gathered, and the random draws of a fresh one.

    A shaper refuses a state of another seed, and its seed is all in which the two differ here.
    """
    here, there = kept["param_groups"][0], fresh["param_groups"][0]
    if not isinstance(here.get(KEY), dict):
        return kept
    entries = {
        name: entry | {"settings": there[KEY][name]["settings"]}
        for name, entry in here[KEY].items()
    }
    return kept | {"param_groups": [here | {KEY: entries}, *kept["param_groups"][1:]]}


def state_of(host: Any, additions: Sequence[Addition]) -> dict[str, Any]:
    """Host and additions between two sessions, so that later training does not change it."""
    kept = [addition.state_dict() for addition in additions]
    return deepcopy({"host": host.state_dict(), "additions": kept})


def hindrance(one: Any, owner: Any) -> str:
    """Why a run could not go on from a point of the ``owner``; empty if it could.

    It can if it differs in rule and budgets only; an informed one where the owner remembers the
    same things as it goes.
    """
    same = ["domain", "stream", "model", "host", "additions"]
    if one.rule.informed:
        same.append("memory")
    others = [name for name in same if getattr(one, name) != getattr(owner, name)]
    if others:
        verb = "differs" if len(others) == 1 and others[0] != "additions" else "differ"
        return f"{' and '.join(others)} {verb}"
    if one.rule.informed and not any(a.remembers for a in made_additions(owner)):
        return "it needs a memory, and this run keeps none"
    return ""


def comparable(one: Any, owner: Any) -> bool:
    """Whether a run could go on from a point of the ``owner``."""
    return not hindrance(one, owner)
