"""Additions to any host's learning: replay, penalties, projections, pulls."""

from __future__ import annotations

from collections.abc import Mapping

from risegrad.common.checks import check_choice
from riselab import plugins
from riselab.common.settings import read, wrong
from riselab.continual.additions.addition import AdditionSettings, check_composition
from riselab.continual.additions.gpm import GpmSettings
from riselab.continual.additions.keeping import DarkReplaySettings, DistillSettings
from riselab.continual.additions.memory import InterpolateSettings, RetractSettings
from riselab.continual.additions.null_space import NullSpaceSettings
from riselab.continual.additions.penalties import EwcSettings, KronAnchorSettings, LwfSettings
from riselab.continual.additions.replay import AllClassesSettings, ReplaySettings

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
    DistillSettings,
    DarkReplaySettings,
    NullSpaceSettings,
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
