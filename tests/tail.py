"""The slow tail: what `make test` leaves out, and `make slow` and CI run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

PATIENCE = 300.0
"""Seconds after which a test gives up an event: many, since a busy machine is no mistake."""
IN_PAGE = 60_000.0
"""Milliseconds, for what a page in the browser shows."""


def by_default(*quick: Any, slow: Sequence[Any]) -> list[Any]:
    """Values for ``parametrize``: some are tested by default, the others only with ``-m slow``."""
    values = [value if isinstance(value, tuple) else (value,) for value in slow]
    return [*quick, *(pytest.param(*value, marks=pytest.mark.slow) for value in values)]
