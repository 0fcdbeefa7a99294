"""One run, from plain settings to a result: the domains share everything but their parts."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from risegrad.common.checks import check_choice
from risegrad.common.imports import explained
from risegrad.common.settings import Unused, read
from riselab import plugins
from riselab.continual.additions import check_composition, read_additions
from riselab.continual.additions.memory import made_additions
from riselab.continual.devices import Devices, described
from riselab.continual.host import Host, Report, TrainingBudget
from riselab.continual.learning import RunSettings
from riselab.continual.rules import read_rule


class Described(RunSettings, Protocol):
    """What the settings of a run in every domain say about training."""

    @property
    def head(self) -> TrainingBudget:
        """How the head trains."""

    @property
    def adapter(self) -> TrainingBudget:
        """How the adapters train."""


R = TypeVar("R", bound=Described)


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
    remembers = any(addition.remembers for addition in additions)
    _check_used(settings, chosen, remembers, unused_model(settings))
    check_composition(chosen, additions)
    return settings


def _check_used(
    settings: Described, host: type[Host], remembers: bool, model: dict[str, str]
) -> None:
    """A setting that the chosen rule or optimizer does not look at is a mistake or a wrong hope."""
    by_table = {
        "rule": settings.rule.unused(settings.rule.name or host.default_rule),
        "head": settings.head.unused(),
        "adapter": settings.adapter.unused(),
        "memory": {} if remembers else settings.memory.unused(),
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
"""Modules with the functions of this one, for their own settings."""


def read_config(plain: Mapping[str, Any]) -> Any:
    """The settings of a run; a ``ValueError`` names the place of a mistake."""
    return _domain(str(plain.get("domain", "vision"))).read_config(plain)


def needs(settings: Any, known: dict[Any, Any] | None = None) -> dict[str, Any]:
    """What is ``missing`` for a run, a sentence each, the ``bytes`` of its checkpoints, and the
    ``device`` that it uses: its kind, and in words.

    ``known`` holds what runs that were asked about before share with this one.
    """
    given = {} if known is None else known
    found: dict[str, Any] = _domain(settings.domain).needs(settings, given)
    return found | {"device": described(settings.loop.device)}


def fetch(settings: Any) -> None:
    """Download what several runs would else download at once, where the settings allow it."""
    if load := getattr(_domain(settings.domain), "fetch", None):
        load(settings)


def estimate(settings: Any) -> dict[str, Any]:
    """How much work a run is: counts that add up over runs."""
    counts: dict[str, Any] = _domain(settings.domain).estimate(settings)
    return counts


def seconds(settings: Any) -> float:
    """How long a run would take here, from a few timed steps."""
    return float(_domain(settings.domain).seconds(settings))


def make_host(settings: Any, devices: Devices) -> Host:
    """The host of a run with everything that it needs, at the start of its stream."""
    host: Host = _domain(settings.domain).make_host(settings, devices)
    return host


def perform(settings: Any, folder: Path, report: Report) -> dict[str, Any]:
    """Learn the stream, going on from checkpoints in ``folder``; the result, plain data."""
    result: dict[str, Any] = _domain(settings.domain).perform(settings, folder, report)
    return result


def _domain(name: str) -> Any:
    check_choice("domain", name, DOMAINS)
    try:
        return importlib.import_module(DOMAINS[name])
    except ImportError as error:
        raise explained(error) from error


def catalogue() -> dict[str, dict[str, str]]:
    """Hosts, rules, streams, additions and models."""
    # Importing them fills the registers.
    from riselab.continual import additions  # noqa: F401
    from riselab.continual.language.hosts.names import SUMMARIES
    from riselab.continual.language.streams.settings import DESCRIPTIONS as TEXT_STREAMS
    from riselab.continual.vision import hosts, models, streams  # noqa: F401

    return {
        "hosts": {**plugins.HOSTS.lines(), **SUMMARIES},
        "rules": plugins.RULES.lines(),
        "streams": {**plugins.STREAMS.lines(), **TEXT_STREAMS},
        "additions": plugins.ADDITIONS.lines(),
        "models": plugins.MODELS.lines(),
    }
