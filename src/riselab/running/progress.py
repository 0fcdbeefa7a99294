"""How far a run is: it writes one small file now and then, from which ``rise run`` shows all."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from risegrad.common.files import replacing
from risegrad.common.imports import absent, need
from riselab.pages.text import visible_lines

if TYPE_CHECKING:
    from riselab.running.schedule import Tally
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


class Display:
    """A line per event, and now and then how far all is: beside a bar of tqdm, or as a line."""

    def __init__(self, bar: Any = None) -> None:
        self.bar = bar
        self.pause = 60.0 if bar is None else 0.5
        self.began = self.spoken = time.monotonic()
        self.before: dict[str, float] = {}
        """how much of each run was done when it was first seen here, from a checkpoint"""

    def say(self, text: str) -> None:
        """Show a line; a bar stays below it."""
        if self.bar is None:
            print(visible_lines(text), flush=True)
        else:
            self.bar.write(visible_lines(text))

    def tick(self, tally: "Tally") -> None:
        """Show the totals now and then, and a bar that is full at the end."""
        early = time.monotonic() - self.spoken < self.pause
        if early and (self.bar is None or tally.left):
            return
        self.spoken = time.monotonic()
        shares = {name: fraction(latest(one.folder)) for name, one in tally.running.items()}
        text = totals(tally, self.seconds_left(tally, shares))
        if self.bar is None:
            self.say(text)
            return
        self.bar.total = tally.total
        self.bar.n = round(tally.total - tally.left + sum(shares.values()), 2)
        self.bar.set_description_str(text)

    def seconds_left(self, tally: "Tally", shares: Mapping[str, float]) -> float | None:
        """How long the rest may take, from what was done here; None while it is too early."""
        self.before = {**shares, **self.before}
        done = tally.done + len(tally.failed) + sum(shares.values()) - sum(self.before.values())
        elapsed = time.monotonic() - self.began
        if done < 0.01 or elapsed < 2:
            return None
        return elapsed / done * (tally.left - sum(shares.values()))


def where(news: dict[str, Any]) -> str:
    """``task 2/10, epoch 1/5, batch 3/40`` as far as it is known."""
    pairs = (("task", "tasks"), ("epoch", "epochs"), ("batch", "batches"))
    parts = [f"{one} {news[one]}/{news.get(many, '?')}" for one, many in pairs if one in news]
    return ", ".join(parts)


def totals(tally: "Tally", seconds_left: float | None) -> str:
    """How many runs are done, running and failed, in one line."""
    counts = {
        "done": tally.before + tally.done,
        "running": len(tally.running),
        "elsewhere": len(tally.elsewhere),
        "failed": len(tally.failed),
    }
    shown = [f"{n} {word}" for word, n in counts.items() if n or word == "done"]
    rest = [f"about {duration(seconds_left)} left"] if seconds_left is not None else []
    return ", ".join([f"{tally.total} runs: {shown[0]}", *shown[1:], *rest])


def duration(seconds: float) -> str:
    """
    >>> duration(59.2), duration(61), duration(7325)
    ('59 s', '1:01', '2:02:05')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    minutes = f"{rest // 60}:{rest % 60:02d}"
    return f"{hours}:{minutes.zfill(5)}" if hours else minutes


@contextmanager
def display() -> Iterator[Display]:
    """With a bar in a terminal and in a notebook, where tqdm is installed."""
    notebook = "ipykernel" in sys.modules
    if absent("tqdm") or not (notebook or sys.stdout.isatty()):
        yield Display()
        return
    form = None if notebook else "{desc} |{bar}|"
    with need("tqdm.auto", "lab").tqdm(
        total=1, file=sys.stdout, bar_format=form, dynamic_ncols=not notebook
    ) as bar:
        yield Display(bar)
