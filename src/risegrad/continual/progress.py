"""How a run says where it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Report = Callable[[dict[str, Any]], None]
"""Called with what changed: task, tasks, epoch, epochs, batch, batches, loss, union accuracy."""


def silent(news: dict[str, Any]) -> None:
    """Say nothing."""
