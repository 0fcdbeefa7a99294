"""Every table of an experiment file in words, from the declarations of its fields.

``rise list settings`` prints it, and the documentation makes a page of it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from itertools import pairwise

from risegrad.common.checks import check_choice
from riselab.common.settings import declared, words


@dataclass(frozen=True)
class FieldReference:
    """One line of a reference."""

    name: str
    allowed: str
    default: str
    """As a TOML file would say it; empty where the field must be given or is a table."""
    meaning: str


def reference(cls: type, defaults: object = None) -> list[FieldReference]:
    """The fields of a dataclass in words; ``defaults``, an instance, has other ones than its own.

    >>> [(field.name, field.allowed) for field in reference(FieldReference)][:2]
    [('name', 'a text'), ('allowed', 'a text')]
    """
    hints, meant = declared(cls), meanings(cls)
    return [
        FieldReference(f.name, words(hints[f.name]), _default(f, defaults), meant.get(f.name, ""))
        for f in fields(cls)
        if f.init
    ]


@functools.cache
def meanings(cls: type) -> dict[str, str]:
    """The docstrings below the fields of a class and of its bases, each on one line."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if is_dataclass(one):
            found |= dict(_docstrings(one))
    return found


def _docstrings(cls: type) -> Iterator[tuple[str, str]]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    for pair in pairwise(tree.body):  # type: ignore[attr-defined]
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                yield name, " ".join(text.split())


def _default(field: Field[object], defaults: object) -> str:
    value = getattr(defaults, field.name, field.default)
    return "" if value is MISSING or is_dataclass(value) else json.dumps(value)


@dataclass(frozen=True)
class SettingsTable:
    """The settings of one table in a file."""

    section: str
    kind: str
    """Of a section that differs by domain, host or addition: which one."""
    cls: type
    defaults: object = None
    """An instance, where they are not those of the class."""

    @property
    def title(self) -> str:
        """The section, and the kind where it has several."""
        return f"{self.section} ({self.kind})" if self.kind else self.section

    @property
    def summary(self) -> str:
        """The first paragraph of the settings' docstring, in one line."""
        return (self.cls.__doc__ or "").split("\n\n")[0].replace("\n", " ").strip()

    @property
    def fields(self) -> list[FieldReference]:
        """Its fields in words."""
        return reference(self.cls, self.defaults)


def tables() -> list[SettingsTable]:
    """All of them; a section that is the same in both domains comes once."""
    return [*_experiment_tables(), *_foresight_tables()]


def _experiment_tables() -> Iterator[SettingsTable]:
    from riselab import plugins
    from riselab.continual.additions import ADDITIONS
    from riselab.continual.chat.settings import ChatRun
    from riselab.continual.language import run as language_run
    from riselab.continual.language.hosts import HOSTS as TEXT_HOSTS
    from riselab.continual.language.streams.settings import OwnTextTask
    from riselab.continual.rules import Rule
    from riselab.continual.vision import run as vision_run
    from riselab.continual.vision.hosts import HOSTS
    from riselab.continual.vision.streams import NAMED

    vision, language = _sections(vision_run.VisionRun), _sections(language_run.LanguageRun)
    for section, (cls, defaults) in vision.items():
        if vision[section] == language[section]:
            yield SettingsTable(section, "", cls, defaults)
        else:
            yield SettingsTable(section, "vision", cls, defaults)
            yield SettingsTable(section, "language", *language[section])
    for section, (cls, defaults) in _sections(ChatRun).items():
        yield SettingsTable(section, "chat", cls, defaults)
    yield SettingsTable("stream.own", "language, by task", OwnTextTask)
    for name, host in {**HOSTS, **TEXT_HOSTS}.items():
        yield SettingsTable("host", name, host.Settings)
    for name, rule in plugins.RULES.items():
        if rule is not Rule:  # a plugin's, with its own settings
            yield SettingsTable("rule", name, rule)
    for name, stream in NAMED.items():
        if isinstance(stream, type):
            yield SettingsTable("stream", name, stream)
    for name, addition in ADDITIONS.items():
        yield SettingsTable("additions", name, addition)


def _sections(run: type) -> dict[str, tuple[type, object]]:
    """The tables of a run: their classes and what stands there by default."""
    kinds = declared(run)
    return {
        field.name: (kinds[field.name], _instance(field))
        for field in fields(run)
        if is_dataclass(kinds[field.name])
    }


def _instance(field: Field[object]) -> object:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def _foresight_tables() -> Iterator[SettingsTable]:
    from risegrad.curvature.estimates import ProductBudget
    from riselab.foresight.settings import DiagnosisSettings, ValidationSettings

    yield SettingsTable("diagnosis", "rise diagnose", DiagnosisSettings)
    yield SettingsTable("diagnosis.budget", "rise diagnose", ProductBudget)
    yield SettingsTable("validation", "rise local", ValidationSettings)


def in_text(section: str | None, width: int) -> str:
    """One section in every kind that it has, or all, for a terminal of ``width`` columns."""
    known = tables()
    if section is not None:
        check_choice("SECTION", section, list(dict.fromkeys(table.section for table in known)))
    chosen = [table for table in known if section in (None, table.section)]
    return "\n\n".join(_table_in_text(table, width) for table in chosen)


def _table_in_text(table: SettingsTable, width: int) -> str:
    lines = [f"{table.title}: {table.summary}"]
    for field in table.fields:
        default = f" (default {field.default})" if field.default else ""
        lines.append(f"  {field.name}: {field.allowed}{default}")
        meaning = field.meaning.replace("``", "")
        lines += textwrap.wrap(meaning, width, initial_indent=6 * " ", subsequent_indent=6 * " ")
    return "\n".join(lines)
