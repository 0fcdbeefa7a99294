"""For Markdown: pages get the tables that the package's declarations make, when the site is built.

A comment on a line of its own is replaced: ``<!-- settings -->`` by every table of an experiment
file, ``<!-- record -->`` by the fields of a record.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

from riselab.commands.arguments import meanings
from riselab.common.settings import declared, required, words
from riselab.records.fields import Record


@dataclass(frozen=True)
class FieldReference:
    """One line of a reference."""

    name: str
    allowed: str
    default: str
    """As a TOML file would say it; empty where the field must be given or is a table."""
    meaning: str


def reference(cls: type, defaults: object = None) -> list[FieldReference]:
    """The fields of a dataclass in words; ``defaults``: an instance with others than its own."""
    hints, meant = declared(cls), meanings(cls)
    return [
        FieldReference(f.name, words(hints[f.name]), _default(f, defaults), meant.get(f.name, ""))
        for f in fields(cls)
        if f.init
    ]


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


def settings() -> list[str]:
    """The lines of a section for every table."""
    return [line for table in tables() for line in _table(table)]


def _table(table: SettingsTable) -> Iterator[str]:
    yield from (f"## {table.title}", "", _markdown(table.summary), "")
    yield from ("| field | allowed | default | meaning |", "|---|---|---|---|")
    for one in table.fields:
        default = f"`{one.default}`" if one.default else ""
        cells = (f"`{one.name}`", _markdown(one.allowed), default, _markdown(one.meaning))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _markdown(text: str) -> str:
    """Docstrings have double backquotes around code; elsewhere a sign must not become markup."""
    parts = text.split("``")
    for place, part in enumerate(parts[::2]):
        parts[2 * place] = part.replace("<", "&lt;").replace("*", "&#42;").replace("_", "&#95;")
    return "`".join(parts).replace("|", "&#124;")


SCHEMA = "version of this format. A newer one than the reader knows is refused, not guessed at"
SEAL = "shows whether the record was edited; see above. `write_record` adds it"


def record() -> list[str]:
    """The lines of a table with every field: its place, what stands there, and what it is."""
    return [
        "| field | what stands there | what it is |",
        "|---|---|---|",
        f"| `schema` | an integer, required | {SCHEMA} |",
        *_rows(Record, ""),
        f"| `seal` | a text, required | {SEAL} |",
    ]


def _rows(cls: type, above: str) -> Iterator[str]:
    hints, meant = get_type_hints(cls, include_extras=True), meanings(cls)
    for one in fields(cls):
        if one.metadata.get("apart"):  # where the file lies is not in it
            continue
        hint, place = hints[one.name], f"{above}{one.name}"
        need = "required" if required(one) else "optional"
        kind = words(hint).replace("a table", "an object").replace('"none"', "null")
        meaning = meant[one.name].replace("``", "`").replace("|", "&#124;")
        yield f"| `{place}` | {kind}, {need} | {meaning} |"
        inner, suffix = _inner(hint)
        if is_dataclass(inner):
            yield from _rows(inner, f"{place}{suffix}.")  # type: ignore[arg-type]


def _inner(hint: Any) -> tuple[Any, str]:
    """The dataclass within a field, if there is one, and how its place is written."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _inner(args[0])
    if origin is tuple:
        return args[0], "[]"
    if len(args) == 2 and args[0] is str:
        return args[1], ".NAME"
    return (args[0] if type(None) in args else hint), ""


MADE: dict[str, Callable[[], list[str]]] = {
    "<!-- settings -->": settings,
    "<!-- record -->": record,
}


class Declarations(Preprocessor):
    """Runs on the lines of a page before they are read as Markdown."""

    def run(self, lines: list[str]) -> list[str]:
        """The lines, with tables in place of the comments."""
        return [made for line in lines for made in (MADE[line]() if line in MADE else [line])]


class DeclarationsExtension(Extension):
    """Named in mkdocs.yml."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(Declarations(md), "declarations", 40)


def makeExtension(**settings: Any) -> DeclarationsExtension:
    """What Markdown looks for in a module that is named as an extension."""
    return DeclarationsExtension(**settings)
