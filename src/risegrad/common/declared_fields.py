"""Fields of settings that state type, bounds and meaning in one place, and the check against it.

A bound or a choice stands in the annotation, the meaning in the docstring below the field. From
there come the check of every instance, the error texts and the settings reference.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Budget(Checked):
...     epochs: Annotated[int, Limits(at_least=0)] = 10
...     schedule: Literal["cosine", "constant"] = "cosine"
>>> Budget(epochs=-1)
Traceback (most recent call last):
    ...
ValueError: epochs must be an integer >= 0, got -1
>>> Budget(schedule="cosin")
Traceback (most recent call last):
    ...
ValueError: schedule must be one of cosine, constant; got 'cosin' (did you mean 'cosine'?)
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin, get_type_hints

from risegrad.common.checks import bounds_in_words, check_choice, check_number, check_probability


class Declaration(Protocol):
    """What may stand in ``Annotated`` beside a type: a check, and the same in words."""

    def check(self, name: str, value: object, kind: Any) -> None:
        """Raise an error if ``value`` is not allowed; ``kind`` is the field's type."""

    def words(self) -> str:
        """What is allowed, in words."""


@dataclass(frozen=True)
class Limits:
    """Limits of a number, or of every number where a field may hold one or several."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def check(self, name: str, value: Any, kind: Any) -> None:
        """Raise an error if a number is outside the limits."""
        several = isinstance(value, tuple) and kind not in (int, float)
        for number in value if several else (value,):
            check_number(name, number, **vars(self), whole=kind is int)

    def words(self) -> str:
        """The limits in words."""
        return bounds_in_words(**vars(self))


@dataclass(frozen=True)
class OneOf:
    """Names that are listed elsewhere, with more about each; a ``Literal`` lists its own."""

    names: Collection[str]

    def check(self, name: str, value: object, kind: Any) -> None:
        """Raise an error if ``value`` is not one of the names."""
        check_choice(name, value, self.names)

    def words(self) -> str:
        """The names in words."""
        return choices_in_words(self.names)


class Probability:
    """A number strictly between 0 and 1."""

    def check(self, name: str, value: object, kind: Any) -> None:
        """Raise an error if ``value`` is not strictly between 0 and 1."""
        check_probability(name, value)

    def words(self) -> str:
        """The limits in words."""
        return Limits(above=0, below=1).words()


Count = Annotated[int, Limits(at_least=0)]
PositiveInt = Annotated[int, Limits(at_least=1)]
NonNegative = Annotated[float, Limits(at_least=0)]
Positive = Annotated[float, Limits(above=0)]
Share = Annotated[float, Limits(at_least=0, below=1)]
Seed32 = Annotated[int, Limits(at_least=0, below=2**32)]
"""What NumPy takes as a seed."""


class Checked:
    """A dataclass whose instances keep to what its fields declare, however they are made."""

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(instance: object, where: str = "") -> None:
    """Every field within what it declares; an error names it below the dotted place ``where``."""
    cls: Any = type(instance)  # mypy takes the hash of instances for that of the class
    for name, hint in declared(cls).items():
        _check(f"{where}.{name}" if where else name, getattr(instance, name), hint)


@functools.cache
def declared(cls: type) -> dict[str, Any]:
    """The fields that a table of settings may give, and their annotations with all they declare."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}


def _check(name: str, value: object, hint: Any) -> None:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for declaration in args[1:]:
            declaration.check(name, value, args[0])
    elif origin is Literal:
        check_choice(name, value, args)
    elif origin is tuple and get_origin(args[0]) is Annotated and isinstance(value, tuple):
        for item in value:
            _check(f"each of {name}", item, args[0])


def choices_in_words(names: Collection[object]) -> str:
    """The choices as a reference shows them."""
    return "one of " + ", ".join(f'"{name}"' for name in names)
