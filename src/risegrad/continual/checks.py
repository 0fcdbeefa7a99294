"""Checks of settings: the message says the argument, what is allowed and what came."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection


def check_choice(argument: str, value: str, allowed: Collection[str]) -> None:
    """``value`` must be one of the names; an error lists them and the nearest.

    >>> check_choice("host", "eas", ["aper", "ease"])
    Traceback (most recent call last):
        ...
    ValueError: host must be one of aper, ease; got 'eas' (did you mean 'ease'?)
    """
    if value in allowed:
        return
    near = difflib.get_close_matches(str(value), list(allowed), n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"{argument} must be one of {', '.join(allowed)}; got {value!r}{hint}")


def check_number(
    argument: str,
    value: float,
    *,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    whole: bool = False,
) -> None:
    """``value`` must be finite and within the bounds given.

    >>> check_number("epochs", 2.5, at_least=0, whole=True)
    Traceback (most recent call last):
        ...
    ValueError: epochs must be a whole number >= 0, got 2.5
    """
    fits = (
        not isinstance(value, bool)
        and isinstance(value, int if whole else (int, float))
        and math.isfinite(value)
        and (at_least is None or value >= at_least)
        and (above is None or value > above)
        and (below is None or value < below)
    )
    if fits:
        return
    bounds = [
        f"{sign} {bound:g}"
        for sign, bound in ((">=", at_least), (">", above), ("<", below))
        if bound is not None
    ]
    kind = "a whole number" if whole else "a number"
    raise ValueError(
        f"{argument} must be {' '.join([kind, ' and '.join(bounds)]).strip()}, got {value!r}"
    )
