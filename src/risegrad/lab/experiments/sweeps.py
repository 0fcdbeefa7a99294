"""``[sweep]``: one method at several settings, which are one curve in every report."""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

from risegrad.common.settings import flat, unknown

TOGETHER = {"lr": ("head.lr", "adapter.lr")}
"""Short keys of a sweep for settings that change together."""


def check_values(where: str, values: dict[str, Any], sections: tuple[str, ...]) -> None:
    """What is varied or swept must be lists of values at places of the known sections."""
    for place, given in values.items():
        root = place.split(".")[0]
        if root not in sections:
            raise ValueError(f"{where}.{place}: {unknown(root, sections)}")
        if not isinstance(given, list) or not given:
            raise ValueError(f"{where}.{place} must be a list of values, got {given!r}")


def check_sweep(sweep: dict[str, Any], sections: tuple[str, ...]) -> None:
    """Every place at most once, whether by its own name or by a short key."""
    given = flat(sweep)
    check_values("sweep", given, (*sections, *TOGETHER))
    for key, places in TOGETHER.items():
        if twice := [place for place in places if key in given and place in given]:
            raise ValueError(f"sweep.{key} sets {twice[0]} too: give one of them only")


def points(sweep: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every combination: by the keys of the sweep, and by the places that these set."""
    given = flat(sweep)
    for values in product(*given.values()):
        named = dict(zip(given, values, strict=True))
        yield named, {p: v for key, v in named.items() for p in TOGETHER.get(key, (key,))}


def size(sweep: dict[str, Any]) -> int:
    """How many settings a sweep has."""
    return math.prod(len(values) for values in flat(sweep).values())
