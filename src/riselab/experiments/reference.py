"""The settings reference, from the declarations of the fields: for the terminal and for the docs.

``python -m riselab.experiments.reference`` prints the page ``docs/settings.md``.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import textwrap
import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from risegrad.common.checks import check_choice
from risegrad.common.settings import OneOf, choices_in_words, declared


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
    [('name', 'text'), ('allowed', 'text')]
    """
    hints, meant = declared(cls), meanings(cls)
    return [
        FieldReference(f.name, allowed(hints[f.name]), _default(f, defaults), meant.get(f.name, ""))
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
    assert isinstance(tree, ast.ClassDef)
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield before.target.id, " ".join(text.split())


_WORDS = {str: "text", int: "integer", float: "number", bool: "true or false"}


def allowed(hint: Any) -> str:
    """An annotation in words: type and bounds."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(args[0], args[1:])
    if origin is Literal:
        return choices_in_words(args)
    if origin in (Union, types.UnionType):
        return " or ".join(map(allowed, args))
    if origin is tuple:
        inner = args[:1] if args[-1] is Ellipsis else args
        return f"list ({', '.join(map(allowed, inner))})"
    if hint is type(None):
        return '"none"'
    return _WORDS.get(hint, "table")


def _annotated(kind: Any, declarations: tuple[Any, ...]) -> str:
    if any(isinstance(one, OneOf) for one in declarations):
        return " and ".join(one.words() for one in declarations)  # that it is a text goes unsaid
    return " ".join([allowed(kind), *(one.words() for one in declarations)])


def _default(field: Field[Any], defaults: object) -> str:
    value = getattr(defaults, field.name, field.default)
    return "" if value is MISSING or is_dataclass(value) else json.dumps(value)


HEAD = """\
# Settings

Every setting of an [experiment file](lab.md) and of a [diagnosis](foresight.md), with what is
allowed, its default and its meaning. A field without a default must be given, unless it is a table.
`rise list settings` shows the same in a terminal, `rise list settings rule` one section.

This page is made from the declarations of the fields and not edited by hand:
`python -m riselab.experiments.reference > docs/settings.md`.
"""


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
    found = {field.name: field for field in fields(run)}
    return {
        name: (cls, _instance(found[name]))
        for name, cls in declared(run).items()
        if isinstance(cls, type) and is_dataclass(cls)
    }


def _instance(field: Field[Any]) -> object:
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
    for field in reference(table.cls, table.defaults):
        default = f" (default {field.default})" if field.default else ""
        lines.append(f"  {field.name}: {field.allowed}{default}")
        lines += textwrap.wrap(
            _plain(field.meaning), width - 6, initial_indent="      ", subsequent_indent="      "
        )
    return "\n".join(lines)


def page() -> str:
    """The page of the docs."""
    return "\n".join([HEAD, *(_table_in_markdown(table) for table in tables())])


def _table_in_markdown(table: SettingsTable) -> str:
    rows = [_row(field) for field in reference(table.cls, table.defaults)]
    head = [f"## {table.title}", "", _markdown(table.summary), ""]
    return "\n".join(
        [*head, "| field | allowed | default | meaning |", "|---|---|---|---|", *rows, ""]
    )


def _row(field: FieldReference) -> str:
    default = f"`{field.default}`" if field.default else ""
    allowed, meaning = _markdown(field.allowed), _markdown(field.meaning)
    return f"| `{field.name}` | {allowed} | {default} | {meaning} |"


def _plain(text: str) -> str:
    return text.replace("``", "")


def _markdown(text: str) -> str:
    """Docstrings have double backquotes around code; elsewhere a sign must not become markup."""
    parts = text.split("``")
    for place, part in enumerate(parts[::2]):
        parts[2 * place] = part.replace("<", "&lt;").replace("*", "&#42;").replace("_", "&#95;")
    return "`".join(parts).replace("|", "&#124;")


if __name__ == "__main__":
    print(page(), end="")
