"""Additions to any host's learning: replay, penalties, projections."""

from __future__ import annotations

from collections.abc import Mapping

from risegrad import plugins
from risegrad.common.checks import check_choice
from risegrad.common.settings import read, wrong
from risegrad.continual.additions.addition import AdditionSettings
from risegrad.continual.additions.all_classes import AllClassesSettings
from risegrad.continual.additions.composition import check_composition
from risegrad.continual.additions.ewc import EwcSettings
from risegrad.continual.additions.gpm import GpmSettings
from risegrad.continual.additions.kron_anchor import KronAnchorSettings
from risegrad.continual.additions.lwf import LwfSettings
from risegrad.continual.additions.replay import ReplaySettings
from risegrad.continual.additions.retract import InterpolateSettings, RetractSettings

__all__ = ["ADDITIONS", "AdditionSettings", "check_composition", "read_additions"]

_ALL: tuple[type[AdditionSettings], ...] = (
    ReplaySettings,
    EwcSettings,
    LwfSettings,
    GpmSettings,
    AllClassesSettings,
    KronAnchorSettings,
    RetractSettings,
    InterpolateSettings,
)
plugins.ADDITIONS.bring(
    {kind.name: kind for kind in _ALL}, {kind.name: kind.summary for kind in _ALL}
)
ADDITIONS: Mapping[str, type[AdditionSettings]] = plugins.ADDITIONS
"""The settings of every addition by name."""


def read_additions(tables: object) -> tuple[AdditionSettings, ...]:
    """Settings from a list of plain tables, each with a ``name``; mistakes are named by place."""
    if not isinstance(tables, list | tuple):
        raise wrong("additions", "a list of tables with a name each", tables)
    found = []
    for position, table in enumerate(tables):
        where = f"additions[{position}]"
        if not isinstance(table, Mapping):
            raise wrong(where, "a table with a name", table)
        check_choice(f"{where}.name", str(table.get("name", "")), ADDITIONS)
        found.append(read(ADDITIONS[table["name"]], table, where))
    return tuple(found)
