"""For Markdown: pages get the tables that the package's declarations make, when the site is built.

A comment on a line of its own is replaced: ``<!-- settings -->`` by every table of an experiment
file, ``<!-- record -->`` by the fields of a record.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

from riselab.common.settings import required, words
from riselab.experiments.reference import SettingsTable, meanings, tables
from riselab.records.fields import Record


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
