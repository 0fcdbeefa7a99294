"""Additions to any host's learning: replay, penalties, projections, pulls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from risegrad.common.checks import check_choice
from risegrad.common.settings import read, wrong
from riselab import plugins
from riselab.continual.additions.addition import Addition, AdditionSettings, check_composition
from riselab.continual.additions.gpm import GpmSettings
from riselab.continual.additions.keeping import (
    DarkReplaySettings,
    DistillSettings,
    Keep,
    Keeps,
)
from riselab.continual.additions.memory import (
    InterpolateSettings,
    MemorySettings,
    RetractSettings,
    RunMemory,
    WithMemory,
)
from riselab.continual.additions.penalties import EwcSettings, KronAnchorSettings, LwfSettings
from riselab.continual.additions.replay import AllClassesSettings, ReplaySettings
from riselab.continual.rules import Rule

__all__ = ["ADDITIONS", "AdditionSettings", "check_composition", "made_additions", "read_additions"]

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


class LearningSettings(Protocol):
    """What the settings of a run say about how it learns, in every domain."""

    @property
    def rule(self) -> Rule:
        """The update rule of the groups that take one."""

    @property
    def memory(self) -> MemorySettings:
        """What is remembered, where the rule or an addition asks for it."""

    @property
    def additions(self) -> Sequence[Any]:
        """The settings of the additions, in their order."""

    @property
    def seed(self) -> int:
        """The seed of everything random in the run."""


def made_additions(settings: LearningSettings) -> list[Addition]:
    """The additions of a run, and behind them what they or the rule keep of each session.

    That comes last: a session's change may be taken back in part before anything is kept of it.
    """
    made: list[Addition] = [addition.make(settings.seed) for addition in settings.additions]
    rule = settings.rule
    if rule.keeps:
        made.append(Keep(settings.seed, pull=rule.pull, budget=rule.budget, damping=rule.damping))
    made.sort(key=lambda addition: isinstance(addition, Keeps))
    for keeps in made:
        if isinstance(keeps, Keeps):
            keeps.settings = settings.memory
    users = [addition for addition in made if isinstance(addition, WithMemory)]
    if not users and not rule.informed:
        return made
    kept = RunMemory(settings.memory, settings.seed)
    for user in users:
        user.kept = kept
    return [*made, kept]
