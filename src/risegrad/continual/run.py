"""One run, from plain settings to a result: the domains share everything but their parts."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from risegrad.checks import check_choice
from risegrad.continual.progress import Report
from risegrad.optional import explained

DOMAINS: dict[str, str] = {
    "vision": "risegrad.continual.vision.run",
    "language": "risegrad.continual.language.run",
}
"""Modules with the functions of this one, for their own settings."""


def read_config(plain: Mapping[str, Any]) -> Any:
    """The settings of a run; a ``ValueError`` names the place of a mistake."""
    return _domain(str(plain.get("domain", "vision"))).read_config(plain)


def needs(settings: Any, known: dict[Any, Any] | None = None) -> dict[str, Any]:
    """What is ``missing`` for a run, a sentence each, and the ``bytes`` of its checkpoints.

    ``known`` holds what runs that were asked about before share with this one.
    """
    given = {} if known is None else known
    found: dict[str, Any] = _domain(settings.domain).needs(settings, given)
    return found


def estimate(settings: Any) -> dict[str, Any]:
    """How much work a run is: counts that add up over runs."""
    counts: dict[str, Any] = _domain(settings.domain).estimate(settings)
    return counts


def seconds(settings: Any) -> float:
    """How long a run would take here, from a few timed steps."""
    return float(_domain(settings.domain).seconds(settings))


def perform(settings: Any, folder: Path, report: Report) -> dict[str, Any]:
    """Learn the stream, going on from checkpoints in ``folder``; the result, plain data."""
    result: dict[str, Any] = _domain(settings.domain).perform(settings, folder, report)
    return result


def _domain(name: str) -> Any:
    check_choice("domain", name, DOMAINS)
    try:
        return importlib.import_module(DOMAINS[name])
    except ImportError as error:
        raise explained(error) from error
