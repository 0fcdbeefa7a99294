"""What the settings of a run in any domain have in common: a host, additions, and that they fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from risegrad.checks import check_choice
from risegrad.continual.additions import check_composition, read_additions
from risegrad.continual.budget import Budget
from risegrad.continual.host import Host
from risegrad.continual.learn import RunSettings
from risegrad.continual.rules import Rule
from risegrad.settings import Unused, read


class Described(RunSettings, Protocol):
    """What the settings of a run in every domain say about training."""

    @property
    def rule(self) -> Rule: ...
    @property
    def head(self) -> Budget: ...
    @property
    def adapter(self) -> Budget: ...


R = TypeVar("R", bound=Described)


def read_run(kind: type[R], plain: Mapping[str, Any], hosts: Mapping[str, type[Host]]) -> R:
    """Plain tables into settings of ``kind``; the name of the host says which settings it has.

    What does not compose or would be ignored is refused here, before anything is loaded.
    """
    host = dict(plain.get("host", {}))
    check_choice("host.name", str(host.get("name", "")), hosts)
    chosen = hosts[host["name"]]
    parts = {
        "host": read(chosen.Settings, host, "host"),
        "additions": read_additions(plain.get("additions", [])),
    }
    settings = read(kind, {**plain, **parts})
    _check_used(settings, chosen)
    check_composition(chosen, [a.make(settings.seed) for a in settings.additions])
    return settings


def _check_used(settings: Described, host: type[Host]) -> None:
    """A setting that the chosen rule or optimizer does not look at is a mistake or a wrong hope."""
    by_table = {
        "rule": settings.rule.unused(settings.rule.name or host.default_rule),
        "head": settings.head.unused(),
        "adapter": settings.adapter.unused(),
    }
    reasons = {
        f"{table}.{name}": reason
        for table, unused in by_table.items()
        for name, reason in unused.items()
    }
    if reasons:
        raise Unused(reasons)
