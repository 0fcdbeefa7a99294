"""Additions to any host's learning: replay, penalties, projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from risegrad.checks import check_choice
from risegrad.continual.additions.agem import AgemSettings
from risegrad.continual.additions.all_classes import AllClassesSettings
from risegrad.continual.additions.base import AdditionSettings
from risegrad.continual.additions.compose import check_composition
from risegrad.continual.additions.ewc import EwcSettings
from risegrad.continual.additions.gpm import GpmSettings
from risegrad.continual.additions.lwf import LwfSettings
from risegrad.continual.additions.replay import ReplaySettings
from risegrad.continual.additions.sam import SamSettings
from risegrad.settings import read

__all__ = ["ADDITIONS", "AdditionSettings", "check_composition", "read_additions"]

_ALL: tuple[type[AdditionSettings], ...] = (
    ReplaySettings,
    EwcSettings,
    LwfSettings,
    AgemSettings,
    SamSettings,
    GpmSettings,
    AllClassesSettings,
)
ADDITIONS: dict[str, type[AdditionSettings]] = {kind.name: kind for kind in _ALL}
"""The settings of every addition by name."""


def read_additions(tables: Sequence[Mapping[str, Any]]) -> tuple[AdditionSettings, ...]:
    """Settings from plain tables, each with a ``name``."""
    found = []
    for position, table in enumerate(tables):
        where = f"additions[{position}]"
        check_choice(f"{where}.name", str(table.get("name", "")), ADDITIONS)
        found.append(read(ADDITIONS[table["name"]], table, where))
    return tuple(found)
