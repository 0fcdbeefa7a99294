"""The settings reference, from the declarations of the fields: for the terminal and for the docs.

``python -m risegrad.lab.experiments.settings_reference`` prints the page ``docs/settings.md``.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any

from risegrad.common.checks import check_choice
from risegrad.common.declared_fields import declared
from risegrad.common.field_reference import FieldReference, reference

HEAD = """\
# Settings

Every setting of an [experiment file](lab.md) and of a [diagnosis](foresight.md), with what is
allowed, its default and its meaning. A field without a default must be given, unless it is a table.
`rise list settings` shows the same in a terminal, `rise list settings rule` one section.

This page is made from the declarations of the fields and not edited by hand:
`python -m risegrad.lab.experiments.settings_reference > docs/settings.md`.
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
    from risegrad import plugins
    from risegrad.continual.additions import ADDITIONS
    from risegrad.continual.chat.chat_settings import ChatRun
    from risegrad.continual.language import language_run
    from risegrad.continual.language.hosts.text_hosts import HOSTS as TEXT_HOSTS
    from risegrad.continual.language.streams.own_text_tasks import OwnTextTask
    from risegrad.continual.update_rules import Rule
    from risegrad.continual.vision import vision_run
    from risegrad.continual.vision.hosts import HOSTS
    from risegrad.continual.vision.streams import NAMED

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
    from risegrad.curvature.estimates.terms import ProductBudget
    from risegrad.foresight.foresight_settings import DiagnosisSettings, ValidationSettings

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
