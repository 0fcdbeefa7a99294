"""The table of the record's fields in ``docs/records.md``, from the schema.

``python -m riselab.records.reference`` puts it there again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from riselab.experiments.reference import meanings
from riselab.records.fields import FRAME, Record
from riselab.records.reader import At, IfAbsent, Percentages

PAGE = Path("docs", "records.md")
BEGIN = "<!-- made by python -m riselab.records.reference -->"
END = "<!-- end of the table -->"

_WORDS = {
    str: "text",
    int: "integer",
    bool: "true or false",
    float | None: "number or null",
    Mapping[str, Any]: "object",
}


def table() -> str:
    """Every field: its place, what stands there, whether it may be absent, and what it is."""
    first, last = (f"| `{name}` | {kind}, required | {_code(text)} |" for name, kind, text in FRAME)
    rows = [first, *_rows(Record, ""), last]
    return "\n".join(["| field | what stands there | what it is |", "|---|---|---|", *rows])


def _rows(cls: type, above: str) -> Iterator[str]:
    hints, meant = get_type_hints(cls, include_extras=True), meanings(cls)
    for one in fields(cls):
        if hints[one.name] is Path:  # where the file lies is not in it
            continue
        kind, notes = _parts(hints[one.name])
        place = f"{above}{_place(one.name, notes)}"
        need = "required" if _required(one, kind, notes) else "optional"
        yield f"| `{place}` | {words(hints[one.name])}, {need} | {_code(meant[one.name])} |"
        inner, suffix = _inner(kind)
        if is_dataclass(inner):
            yield from _rows(inner, f"{place}{suffix}.")  # type: ignore[arg-type]


def words(kind: Any) -> str:
    """The type of a field as JSON has it."""
    kind, notes = _parts(kind)
    args = get_args(kind)
    if kind in _WORDS:
        return _WORDS[kind]
    if get_origin(kind) is tuple:
        each = next((n.each for n in notes if isinstance(n, Percentages)), words(args[0]))
        return f"list ({each})"
    if get_origin(kind) is Mapping:
        return f"object ({words(args[1])} by name)"
    return "object or null" if type(None) in args else "object"


def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        return kind, tuple(notes)
    return hint, ()


def _place(name: str, notes: tuple[Any, ...]) -> str:
    return next((f"{n.outer}.{n.key}" for n in notes if isinstance(n, At)), name)


def _required(field: Field[Any], kind: Any, notes: tuple[Any, ...]) -> bool:
    """Null and absent are the same, so what may be null may be absent."""
    absent = type(None) in get_args(kind) or any(isinstance(note, IfAbsent) for note in notes)
    return field.default is MISSING and field.default_factory is MISSING and not absent


def _inner(kind: Any) -> tuple[Any, str]:
    """The dataclass within a field, if there is one, and how its place is written."""
    args = get_args(kind)
    if get_origin(kind) is tuple:
        return args[0], "[]"
    if get_origin(kind) is Mapping:
        return args[1], ".NAME"
    return (args[0] if type(None) in args else kind), ""


def _code(text: str) -> str:
    return text.replace("``", "`").replace("|", "&#124;")


def current(page: str) -> str:
    """The page with the table as it is now."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(current(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
