"""What the settings of a run in any domain have in common: a host, additions, and that they fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from risegrad.checks import check_choice
from risegrad.continual.additions import check_composition, read_additions
from risegrad.continual.host import Host
from risegrad.continual.learn import RunSettings
from risegrad.settings import read

R = TypeVar("R", bound=RunSettings)


def read_run(kind: type[R], plain: Mapping[str, Any], hosts: Mapping[str, type[Host]]) -> R:
    """Plain tables into settings of ``kind``; the name of the host says which settings it has.

    What does not compose is refused here, before anything is loaded, and not only by the learner.
    """
    host = dict(plain.get("host", {}))
    check_choice("host.name", str(host.get("name", "")), hosts)
    chosen = hosts[host["name"]]
    parts = {
        "host": read(chosen.Settings, host, "host"),
        "additions": read_additions(plain.get("additions", [])),
    }
    settings = read(kind, {**plain, **parts})
    check_composition(chosen, [a.make(settings.seed) for a in settings.additions])
    return settings
