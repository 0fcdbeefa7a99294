"""One run, from plain settings to a result: the domains share everything but their parts."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from risegrad.common.checks import check_choice
from risegrad.common.imports import explained
from riselab import plugins
from riselab.common.settings import Unused, read
from riselab.continual import metrics
from riselab.continual.additions import check_composition, read_additions
from riselab.continual.devices import Devices, described
from riselab.continual.host import Host, Report
from riselab.continual.learning import History, Run, learn_stream, made_additions
from riselab.continual.preflight import Known, checkpoint_bytes, once, per_example, step
from riselab.continual.results import result
from riselab.continual.rules import Rule, read_rule

Matrix = list[list[float]]
S = TypeVar("S")
R = TypeVar("R", bound=Run)


class Domain(ABC, Generic[S]):
    """What runs of one kind of model and data are made of, beside what they all share."""

    @abstractmethod
    def read(self, plain: Mapping[str, Any]) -> S:
        """Plain tables into settings; a ``ValueError`` names the place of a mistake."""

    @abstractmethod
    def missing(self, settings: S, known: Known) -> list[str]:
        """What is not there for a run, a sentence each, with the way to get it."""

    def checkpoint(self, settings: S) -> int:
        """About how many parameters a checkpoint holds."""
        return 0

    def fetch(self, settings: S) -> None:
        """Download what several runs would else download at once, where the settings allow it."""

    @abstractmethod
    def estimate(self, settings: S) -> dict[str, Any]:
        """How much work a run is: counts that add up over runs."""

    @abstractmethod
    def seconds(self, settings: S) -> float:
        """How long a run would take here, from a few timed steps."""

    @abstractmethod
    def perform(self, settings: S, folder: Path, report: Report) -> dict[str, Any]:
        """Learn the stream, going on from checkpoints in ``folder``; the result, plain data."""


@dataclass(frozen=True)
class Work:
    """How much a run is, in examples."""

    train: list[int]
    """Of each task."""
    tests: list[int]
    steps: int
    """Examples of all training steps, as often as they are seen."""
    scored: int
    """Examples through the model outside training."""
    base: int = 0
    """Examples of the training before the stream."""
    cached: bool = False
    """Whether training steps see features and not the model."""


class HostDomain(Domain[R]):
    """One whose runs take a host through a stream, by one loop for all."""

    examples: ClassVar[str]
    """What an example is called, in the plural."""
    hosts: Mapping[str, type[Any]]

    @abstractmethod
    def host(self, settings: R, devices: Devices) -> Any:
        """The host with its ``stream`` and all that the settings describe, at the beginning."""

    @abstractmethod
    def summarize(self, settings: R, matrix: Matrix, union: list[float]) -> metrics.Summary:
        """Avg, Last and Fgt."""

    @abstractmethod
    def no_data(self, stream: Any) -> list[str]:
        """What is not there for these settings of a stream."""

    def no_model(self, model: Any) -> list[str]:
        """What is not there for these settings of a model."""
        return []

    @abstractmethod
    def work(self, settings: R) -> Work:
        """How much a run is."""

    @abstractmethod
    def small(self, settings: R) -> R:
        """The same with about a batch of examples of each task, to be timed."""

    @abstractmethod
    def score(self, host: Any) -> int:
        """Pass test examples of the first task through the model; how many."""

    def missing(self, settings: R, known: Known) -> list[str]:
        """Each part is looked for once, however many rows share it."""
        model = getattr(settings, "model", None)
        return [*once(known, self.no_data, settings.stream), *once(known, self.no_model, model)]

    def estimate(self, settings: R) -> dict[str, Any]:
        """Examples through the model, counted forward and backward; scoring included."""
        work, default = self.work(settings), self.hosts[settings.host.name].default_rule
        passes = Rule(settings.rule.name or default, settings.rule.q).passes
        forward, backward = (0 if work.cached else work.steps * n for n in passes)
        return {
            "tasks": len(work.train),
            f"train {self.examples}": sum(work.train),
            f"test {self.examples}": sum(work.tests),
            "forward": work.base + forward + work.scored,
            "backward": work.base + backward,
        }

    def seconds(self, settings: R) -> float:
        """From timed steps and scores of a small run; a step of a base is about three passes."""
        work, loop = self.work(settings), replace(settings.loop, score_on="test")
        step, score = _paces(replace(self.small(settings), loop=loop, seed=0))
        return work.steps * step + (work.scored + 3 * work.base) * score

    def more(self, found: dict[str, Any], host: Any, history: History) -> None:
        """Put into the result what only this domain has; by default nothing."""

    def perform(self, settings: R, folder: Path, report: Report) -> dict[str, Any]:
        devices = settings.devices
        host = self.host(settings, devices)
        history = learn_stream(host, len(host.stream), settings, devices, folder, report)
        summarize = partial(self.summarize, settings)
        found = result(host.stream, history, host.main_score, summarize)
        self.more(found, host, history)
        return found


@cache
def _paces(small: Any) -> tuple[float, float]:
    """Seconds of an example in a step, and on its way through the model when it is scored."""
    own, devices = domain(small.domain), small.devices
    assert isinstance(own, HostDomain)
    host = own.host(small, devices)
    return step(host, small, devices), per_example(lambda: own.score(host), devices)


def read_run(
    kind: type[R],
    plain: Mapping[str, Any],
    hosts: Mapping[str, type[Host]],
    unused_model: Callable[[R], dict[str, str]] = lambda settings: {},
) -> R:
    """Plain tables into settings of ``kind``; the name of the host says which settings it has.

    What does not compose or would be ignored is refused here, before anything is loaded.
    ``unused_model`` gives the settings of the domain's model that would be, and why.
    """
    host = dict(plain.get("host", {}))
    check_choice("host.name", str(host.get("name", "")), hosts)
    chosen = hosts[host["name"]]
    parts = {
        "host": read(chosen.Settings, host, "host"),
        "rule": read_rule(plain.get("rule", {})),
        "additions": read_additions(plain.get("additions", [])),
    }
    settings = read(kind, {**plain, **parts})
    additions = made_additions(settings)
    used = {setting for addition in additions for setting in addition.uses}
    _check_used(settings, chosen, used, unused_model(settings))
    check_composition(chosen, additions)
    return settings


def _check_used(
    settings: Run, host: type[Host], memory: Collection[str], model: dict[str, str]
) -> None:
    """A setting that the chosen rule or optimizer does not look at is a mistake or a wrong hope."""
    by_table = {
        "rule": settings.rule.unused(settings.rule.name or host.default_rule),
        "head": settings.head.unused(),
        "adapter": settings.adapter.unused(),
        "memory": settings.memory.unused(memory),
        "model": model,
    }
    reasons = {
        f"{table}.{name}": reason
        for table, unused in by_table.items()
        for name, reason in unused.items()
    }
    if reasons:
        raise Unused(reasons)


DOMAINS: dict[str, str] = {
    "vision": "riselab.continual.vision.run",
    "language": "riselab.continual.language.run",
    "chat": "riselab.continual.chat.run",
    "own": "riselab.continual.custom",
}
"""Modules with a ``DOMAIN`` each."""


def read_config(plain: Mapping[str, Any]) -> Any:
    """The settings of a run; a ``ValueError`` names the place of a mistake."""
    return domain(str(plain.get("domain", "vision"))).read(plain)


def needs(settings: Any, known: Known | None = None) -> dict[str, Any]:
    """What is ``missing`` for a run, a sentence each, the ``bytes`` of its checkpoints, and the
    ``device`` that it uses: its kind, and in words.

    ``known`` holds what runs that were asked about before share with this one.
    """
    own = domain(settings.domain)
    return {
        "missing": own.missing(settings, {} if known is None else known),
        "bytes": checkpoint_bytes(own.checkpoint(settings)),
        "device": described(settings.loop.device),
    }


def fetch(settings: Any) -> None:
    """Download what several runs would else download at once, where the settings allow it."""
    domain(settings.domain).fetch(settings)


def estimate(settings: Any) -> dict[str, Any]:
    """How much work a run is: counts that add up over runs."""
    return domain(settings.domain).estimate(settings)


def seconds(settings: Any) -> float:
    """How long a run would take here, from a few timed steps."""
    return domain(settings.domain).seconds(settings)


def make_host(settings: Any, devices: Devices) -> Any:
    """The host of a run with everything that it needs, at the start of its stream."""
    own = domain(settings.domain)
    if not isinstance(own, HostDomain):
        raise ValueError(f"domain {settings.domain!r} has no hosts")
    return own.host(settings, devices)


def perform(settings: Any, folder: Path, report: Report) -> dict[str, Any]:
    """Learn the stream, going on from checkpoints in ``folder``; the result, plain data."""
    return domain(settings.domain).perform(settings, folder, report)


def domain(name: str) -> Domain[Any]:
    """The domain of this name, whose modules are imported only now."""
    check_choice("domain", name, DOMAINS)
    try:
        found: Domain[Any] = importlib.import_module(DOMAINS[name]).DOMAIN
    except ImportError as error:
        raise explained(error) from error
    return found


def catalogue() -> dict[str, dict[str, str]]:
    """Hosts, rules, streams, additions and models."""
    # Importing them fills the registers.
    from riselab.continual import additions  # noqa: F401
    from riselab.continual.language import SUMMARIES
    from riselab.continual.language.streams.settings import DESCRIPTIONS as TEXT_STREAMS
    from riselab.continual.vision import hosts, models, streams  # noqa: F401

    return {
        "hosts": {**plugins.HOSTS.lines(), **SUMMARIES},
        "rules": plugins.RULES.lines(),
        "streams": {**plugins.STREAMS.lines(), **TEXT_STREAMS},
        "additions": plugins.ADDITIONS.lines(),
        "models": plugins.MODELS.lines(),
    }
