"""How far a run is: it writes one small file now and then, which others can read."""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from risegrad.common.files import replacing

if TYPE_CHECKING:
    from riselab.running.trackers import Tracking

NAME = "progress"
PAUSE = 0.5  # seconds between two writes


class Progress:
    """Takes what changed, keeps all of it, and writes it to the run's folder."""

    def __init__(
        self,
        folder: Path,
        tracking: "Tracking | None" = None,
        watch: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.path, self.news, self.tracking = folder / NAME, dict[str, Any](), tracking
        self.watch = watch
        self.written = 0.0

    def __call__(self, news: Mapping[str, Any]) -> None:
        self.news = combined(self.news, news)
        if self.tracking is not None:
            self.tracking.add(self.news, news)
        if self.watch is not None:
            self.watch(self.news)
        if time.monotonic() - self.written >= PAUSE:
            self.written = time.monotonic()
            self._write()

    def _write(self) -> None:
        """Without fsync and without errors: a run does not fail over its progress file."""
        beside = self.path.with_name(f".{NAME}")
        with suppress(OSError), replacing(self.path, beside):
            beside.write_text(json.dumps(self.news, default=str), encoding="utf-8")


INNER = {"task": ("epoch", "epochs", "batch", "batches"), "epoch": ("batch", "batches")}


def combined(before: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, Any]:
    """What is known after the news: with a new task, the epoch is no longer known."""
    stale = {name for key, names in INNER.items() if key in news for name in names}
    return {key: value for key, value in before.items() if key not in stale} | dict(news)


def latest(folder: Path) -> dict[str, Any]:
    """The last words of a run; empty if there are none yet."""
    try:
        news = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return news if isinstance(news, dict) else {}


def fraction(news: Mapping[str, Any]) -> float:
    """How much of the run is done, from 0 to 1. Counts start at 1 and name what is under way.

    >>> fraction({"task": 2, "tasks": 4})
    0.25
    >>> fraction({"task": 2, "tasks": 4, "epoch": 1, "epochs": 2, "batch": 5, "batches": 10})
    0.3125
    """
    done = _share(news, "batch", "batches", 0) if "batch" in news else 0.0
    for one, many in (("epoch", "epochs"), ("task", "tasks")):
        if one in news and many in news:
            done = _share(news, one, many, 1, done)
        elif one == "task":
            return 0.0
    return min(max(done, 0.0), 1.0)


def _share(news: Mapping[str, Any], one: str, many: str, first: int, inner: float = 0.0) -> float:
    try:
        return (float(news[one]) - first + inner) / max(float(news[many]), 1.0)
    except (TypeError, ValueError, KeyError):
        return 0.0
