"""Fields of settings in words: what each may be, its default and its meaning, as declared."""

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

from risegrad.common.declared_fields import OneOf, choices_in_words, declared


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
