"""A workload that 'trains' by hashing, with a checkpoint after every step, and can misbehave.

``FAKE_PAUSE`` in the environment slows it down: seconds per step.
"""

import errno
import hashlib
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from riselab.common.inputs import Local, Reading
from riselab.common.settings import read

TASKS = 2


@dataclass(frozen=True)
class Stream:
    name: str = "counting"
    data: str | None = None


@dataclass(frozen=True)
class Host:
    name: Literal["well", "fails", "fails-once", "dies", "dies-once", "full", "talks"] = "well"
    lr: float = 0.1

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"lr must be positive, got {self.lr}")


@dataclass(frozen=True)
class Rule:
    q: int = 1


@dataclass(frozen=True)
class Loop:
    steps: int = 3
    score_on: Literal["test", "validation"] = "test"


@dataclass(frozen=True)
class Config:
    domain: str
    seed: int
    stream: Stream = field(default_factory=Stream)
    host: Host = field(default_factory=Host)
    rule: Rule = field(default_factory=Rule)
    loop: Loop = field(default_factory=Loop)

    def reads(self) -> dict[str, Reading]:
        return {"stream.data": Local(self.stream.data)} if self.stream.data else {}


def read_config(plain: Mapping[str, Any]) -> Config:
    return read(Config, plain)


def estimate(config: Config) -> dict[str, Any]:
    return {"steps": TASKS * config.loop.steps, "note": "not a number"}


def perform(config: Config, folder: Path, report: Any) -> dict[str, Any]:
    steps = TASKS * config.loop.steps
    state = _load(folder) or {"step": 0, "digest": f"{config.seed} {config.rule.q}"}
    while state["step"] < steps:
        task, step = divmod(state["step"], config.loop.steps)
        report({"task": task + 1, "tasks": TASKS})
        report({"batch": step + 1, "batches": config.loop.steps, "loss": 1 / (step + 1)})
        time.sleep(float(os.environ.get("FAKE_PAUSE", "0")))
        digest = hashlib.sha256(state["digest"].encode()).hexdigest()
        if state["step"] == steps // 2:
            _misbehave(config.host.name, folder)
        state = {"step": state["step"] + 1, "digest": digest}
        _save(folder, state)
    report({"union": 50.0})
    return _result(state["digest"], config) | {
        "seconds": {"train": [0.5, 0.5], "score": [0.1, 0.1]}
    }


def _misbehave(name: str, folder: Path) -> None:
    first = not (folder / "misbehaved").exists()
    (folder / "misbehaved").touch()
    if name == "fails" or (name == "fails-once" and first):
        raise ArithmeticError("the loss is not a number")
    if name == "dies" or (name == "dies-once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "checkpoint"))
    if name == "talks":
        print("hello from the run")


def _load(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / "checkpoints" / "state").read_text())
    except FileNotFoundError:
        return None
    return found


def _save(folder: Path, state: dict[str, Any]) -> None:
    place = folder / "checkpoints"
    place.mkdir(exist_ok=True)
    (place / "partial").write_text(json.dumps(state))
    os.replace(place / "partial", place / "state")


def _result(digest: str, config: Config) -> dict[str, Any]:
    a, b, c = (int(digest[i : i + 2], 16) % 100 for i in (0, 2, 4))
    if config.loop.score_on == "validation":  # best at a rate of 1, whatever the seed
        a = 90 - 10 * abs(round(config.host.lr) - 1)
    return {
        "tasks": [{"name": "first"}, {"name": "second"}],
        "scores": {"top1": {"matrix": [[a], [b, c]], "union": [a, (b + c) / 2]}},
        "main_score": "top1",
        "metrics": {"avg": float(a), "last": (b + c) / 2, "forgetting": float(a - b)},
        "losses": [],
        "notes": [digest],
    }
