"""One run of a person's own model: settings, the parts they describe, and what came out."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from risegrad.common.declared_fields import Checked
from risegrad.common.run_inputs import Local, Reading
from risegrad.continual import metrics, run_pace
from risegrad.continual.additions.run_memory import MemorySettings
from risegrad.continual.devices import Devices
from risegrad.continual.own_host import OwnHost
from risegrad.continual.own_problem import GIVEN, made, maker
from risegrad.continual.run_needs import Known, complaint
from risegrad.continual.run_results import result
from risegrad.continual.runs import read_run
from risegrad.continual.session import Report
from risegrad.continual.session_training import Loop
from risegrad.continual.stream_learning import learn_stream
from risegrad.continual.training_budget import TrainingBudget
from risegrad.continual.update_rules import Rule

HOSTS: dict[str, type[OwnHost]] = {OwnHost.name: OwnHost}


@dataclass(frozen=True)
class OwnStreamSettings(Checked):
    """Which function makes the model and its data."""

    problem: str
    """``module:function``; the function takes a seed and returns an ``OwnProblem``."""
    name: str = "own"
    """The name in records."""


@dataclass(frozen=True)
class OwnRun:
    """Everything that a run of an own model depends on."""

    stream: OwnStreamSettings
    host: Any
    """The settings of the host, with its ``name``."""
    rule: Rule = field(default_factory=Rule)
    adapter: TrainingBudget = field(default_factory=TrainingBudget)
    """Of all parameters that are trained."""
    head: TrainingBudget = field(default_factory=TrainingBudget)
    """Not used."""
    memory: MemorySettings = field(default_factory=MemorySettings)
    loop: Loop = field(default_factory=lambda: Loop(batch=1))
    """A step takes one of the function's own batches: ``loop.batch`` is 1."""
    additions: tuple[Any, ...] = ()
    seed: int = 0
    """What the function is called with, and the seed of batches and draws."""
    domain: Literal["own"] = "own"

    def reads(self) -> dict[str, Reading]:
        """The file of the function's module, where it is one."""
        if self.stream.problem.startswith(GIVEN):
            return {}
        module = sys.modules.get(maker(self.stream.problem).__module__)
        file = getattr(module, "__file__", None)
        return {"stream.problem.module": Local(file)} if file else {}


def read_config(plain: Mapping[str, Any]) -> OwnRun:
    """Plain tables into settings."""
    loop = {"batch": 1} | dict(plain.get("loop", {}))
    settings = read_run(OwnRun, {**plain, "loop": loop}, HOSTS)
    if settings.loop.batch != 1:
        raise ValueError(
            f"loop.batch must be 1, a step takes one batch of the function; got {loop['batch']}"
        )
    return settings


def needs(settings: OwnRun, known: Known) -> dict[str, Any]:
    """``missing``: what the function complains about."""
    return {"missing": complaint(lambda: made(settings.stream.problem, settings.seed)), "bytes": 0}


def estimate(settings: OwnRun) -> dict[str, Any]:
    """Batches, and how many pass forward and backward while learning."""
    new, tests = _sizes(make_host(settings, _devices(settings)))
    trained = new * settings.adapter.epochs
    return {"tasks": 2, "batches": new, "forward": trained + 2 * tests, "backward": trained}


def seconds(settings: OwnRun) -> float:
    """How long a run would take here, from one timed epoch and one scoring."""
    devices = _devices(settings)
    host = make_host(settings, devices)
    new, tests = _sizes(host)
    score = run_pace.per_example(lambda: host.score(range(2)), tests, devices)
    step = run_pace.step(host, settings, devices)
    return new * settings.adapter.epochs * step + 2 * tests * score


def perform(settings: OwnRun, folder: Path, report: Report) -> dict[str, Any]:
    """Learn what is new, continuing from what is in ``folder``."""
    devices = _devices(settings)
    host = make_host(settings, devices)
    history = learn_stream(host, len(host.stream), settings, devices, folder, report)
    found = result(host.stream, history, host.main_score, lambda A, u: metrics.summary_domains(A))
    for task, (_, answers) in zip(found["tasks"], history.scores[-1][host.main_score], strict=True):
        task["answers"] = answers
    return found


def make_host(settings: OwnRun, devices: Devices) -> OwnHost:
    """The host with the model and the data that the function makes."""
    rule = settings.rule if settings.rule.name else Rule(OwnHost.default_rule)
    return OwnHost(made(settings.stream.problem, settings.seed), rule, settings.adapter, devices)


def _devices(settings: OwnRun) -> Devices:
    return Devices(settings.loop.precision, settings.loop.device)


def _sizes(host: OwnHost) -> tuple[int, int]:
    """Training batches of what is new, and test batches of both."""
    return len(host.stream[1].train), sum(len(task.test) for task in host.stream)
