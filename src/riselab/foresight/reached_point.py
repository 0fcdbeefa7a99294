"""A run at one point of its stream: the host between two sessions, and the session that is next."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from riselab.continual.additions.addition import Addition
from riselab.continual.checkpoints import Checkpoints
from riselab.continual.devices import Devices
from riselab.continual.host import Host, Report, silent
from riselab.continual.learning import Learner, begin_session, made_additions, origin_of
from riselab.continual.runs import make_host
from riselab.continual.training import SessionTraining

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
            # Where the run is inside a session, the point is before it.
            checkpoints.save(state if done < wanted else {"between": state["between"]})
        additions = made_additions(settings)
        learner = UnscoredLearner(
            host, wanted, loop=settings.loop, seed=settings.seed, additions=additions,
            devices=devices, checkpoints=checkpoints, report=report,
        )  # fmt: skip
        learner.run()
        return ReachedPoint(settings, host, devices, additions, wanted, state_of(host, additions))

    @property
    def tasks(self) -> int:
        """How many tasks the stream has."""
        return len(self.host.kit.stream)

    def training(self, settings: Any = None, seed: int | None = None) -> SessionTraining:
        """The session as a run with these settings (the point's own) begins it.

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
        return SessionTraining(session, chosen.loop, self.devices, self.additions, own)


def state_of(host: Any, additions: Sequence[Addition]) -> dict[str, Any]:
    """Host and additions between two sessions, so that later training does not change it."""
    kept = [addition.state_dict() for addition in additions]
    return deepcopy({"host": host.state_dict(), "additions": kept})
