"""What ``rise run`` shows: a line per event, and a bar where somebody watches."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from risegrad.common.imports import absent, need
from riselab.pages.text import visible_lines
from riselab.running.progress import fraction, latest
from riselab.running.schedule import Tally


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

    def tick(self, tally: Tally) -> None:
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

    def seconds_left(self, tally: Tally, shares: Mapping[str, float]) -> float | None:
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


def totals(tally: Tally, seconds_left: float | None) -> str:
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
