"""Checks of numbers and choices: the message says the argument, what is allowed and what came.

A value of the wrong kind is a ``TypeError``, a wrong value of the right kind a ``ValueError``.
"""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Collection, Iterable
from numbers import Integral, Real
from typing import TypeVar

T = TypeVar("T")


def check_kind(name: str, value: object, kind: type[T], allowed: str) -> T:
    """``value``, which must be of this kind; ``allowed`` says in words what that is.

    >>> check_kind("progress", 3, dict, "a table")
    Traceback (most recent call last):
        ...
    TypeError: progress must be a table, got 3 (int)
    """
    if isinstance(value, kind):
        return value
    raise TypeError(f"{name} must be {allowed}, got {reprlib.repr(value)} ({_kind_of(value)})")


def _kind_of(value: object) -> str:
    return "a class, not an object" if isinstance(value, type) else type(value).__name__


def check_choice(name: str, value: object, allowed: Collection[str]) -> None:
    """``value`` must be one of the names; an error lists them and the nearest.

    >>> check_choice("host", "eas", ["aper", "ease"])
    Traceback (most recent call last):
        ...
    ValueError: host must be one of aper, ease; got 'eas' (did you mean 'ease'?)
    """
    if value in allowed:
        return
    hint = nearest_hint(value, allowed)
    names = listed(allowed) or "nothing: there is none"
    raise ValueError(f"{name} must be one of {names}; got {value!r}{hint}")


def listed(names: Iterable[str]) -> str:
    """Names in a sentence; with quotes where one has a comma itself, or nothing at all.

    >>> listed(["FO", "FO (lr=0.1), validation"])
    'FO, "FO (lr=0.1), validation"'
    """
    return ", ".join(f'"{name}"' if "," in name or not name else name for name in map(str, names))


def nearest_hint(value: object, allowed: Collection[str]) -> str:
    """The end of an error about a choice: the nearest of the names, if one is near."""
    near = difflib.get_close_matches(str(value), list(allowed), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_number(
    name: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> float:
    """``value``, which must be finite and within the bounds, as a float or (``whole``) an int.

    >>> check_number("decay", 1.5, above=0, at_most=1)
    Traceback (most recent call last):
        ...
    ValueError: decay must be a finite number > 0 and <= 1, got 1.5
    >>> check_number("epochs", 2.5, at_least=0, whole=True)
    Traceback (most recent call last):
        ...
    TypeError: epochs must be an integer >= 0, got 2.5 (float)
    """
    words = bounds_in_words(at_least, above, at_most, below)
    allowed = f"{name} must be {'an integer' if whole else 'a finite number'} {words}".rstrip()
    number = _real(allowed, value, whole)
    fits = (
        math.isfinite(number)
        and (at_least is None or number >= at_least)
        and (above is None or number > above)
        and (at_most is None or number <= at_most)
        and (below is None or number < below)
    )
    if not fits:
        raise ValueError(f"{allowed}, got {value}")
    return number


def bounds_in_words(
    at_least: float | None, above: float | None, at_most: float | None, below: float | None
) -> str:
    """``>= 0 and < 1``, say; empty without any bound."""
    bounds = {">=": at_least, ">": above, "<=": at_most, "<": below}
    return " and ".join(f"{sign} {b}" for sign, b in bounds.items() if b is not None)


def check_int(name: str, value: object) -> int:
    """``value`` as an int, of whatever size."""
    return int(check_number(name, value, whole=True))


def check_positive_int(name: str, value: object) -> int:
    """``value`` as an int >= 1: a dimension, a number of queries or of samples."""
    return int(check_number(name, value, at_least=1, whole=True))


def check_probability(name: str, value: object) -> float:
    """``value`` as a float strictly between 0 and 1."""
    allowed = f"{name} must be a number in (0, 1)"
    number = _real(allowed, value)
    if not 0 < number < 1:
        raise ValueError(f"{allowed}, got {value}")
    return number


def _real(allowed: str, value: object, whole: bool = False) -> float:
    if not isinstance(value, bool):
        if whole and isinstance(value, Integral):
            return int(value)  # not as a float, which would round a large one
        if not whole and isinstance(value, Real):
            return float(value)
    raise TypeError(f"{allowed}, got {value!r} ({type(value).__name__})")
