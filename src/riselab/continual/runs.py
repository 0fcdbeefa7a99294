"""One run, from plain settings to a result: the domains share everything but their parts."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from risegrad.common.checks import check_choice
from risegrad.common.imports import explained
from riselab import plugins
from riselab.common.settings import Unused, read
from riselab.continual import metrics
from riselab.continual.additions import check_composition, read_additions
from riselab.continual.devices import Devices, described
from riselab.continual.host import Host, Report
from riselab.continual.learning import History, Run, learn_stream, made_additions
from riselab.continual.preflight import Known, checkpoint_bytes
from riselab.continual.results import result
from riselab.continual.rules import read_rule

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


class HostDomain(Domain[R]):
    """One whose runs take a host through a stream, by one loop for all."""

    @abstractmethod
    def host(self, settings: R, devices: Devices) -> Any:
        """The host with its ``stream`` and all that the settings describe, at the beginning."""

    @abstractmethod
    def summarize(self, settings: R, matrix: Matrix, union: list[float]) -> metrics.Summary:
        """Avg, Last and Fgt."""

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
