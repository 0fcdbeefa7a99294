"""What ``rise run`` shows: a line per event, and a bar where somebody watches."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from risegrad.common.imports import absent, need
from riselab.pages.text import visible_lines
from riselab.running.progress import fraction, latest
from riselab.running.schedule import Tally, Watcher


class Pace:
    """How long the rest will take, from what was done since the beginning.

    A run that goes on from a checkpoint counts only what it does from now on.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.first: dict[str, float] = {}

    def seconds_left(self, tally: Tally, shares: dict[str, float]) -> float | None:
        """How long the rest may take; None while it is too early to say."""
        for name, share in shares.items():
            self.first.setdefault(name, share)
        before = sum(self.first.values())
        now = tally.done + len(tally.failed) + sum(shares.values())
        work, left = now - before, tally.left - sum(shares.values())
        elapsed = time.monotonic() - self.began
        return elapsed / work * left if work > 0.01 and elapsed > 2 else None


class Lines:
    """One line per event, and one now and then that says how far everything is."""

    EVERY = 60.0

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.spoken = stream, time.monotonic()
        self.pace = Pace()

    def say(self, text: str) -> None:
        """Print a line."""
        print(visible_lines(text), file=self.stream, flush=True)

    def tick(self, tally: Tally) -> None:
        """Say the totals now and then."""
        if time.monotonic() - self.spoken >= self.EVERY:
            self.spoken = time.monotonic()
            shares = {name: fraction(latest(one.folder)) for name, one in tally.running.items()}
            self.show(tally, totals(tally, self.pace.seconds_left(tally, shares)), shares)

    def show(self, tally: Tally, text: str, shares: dict[str, float]) -> None:
        """Print the totals."""
        self.say(text)


class Bar(Lines):
    """A bar of tqdm with the totals beside it, in a terminal or notebook; events go above it."""

    EVERY = 0.5

    def __init__(self, bar: Any) -> None:
        super().__init__(sys.stdout)
        self.bar, self.spoken = bar, 0.0

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self.bar.write(visible_lines(text))

    def tick(self, tally: Tally) -> None:
        """Move the bar now and then, and at the end."""
        if not tally.left:
            self.spoken = 0.0
        super().tick(tally)

    def show(self, tally: Tally, text: str, shares: dict[str, float]) -> None:
        """Move the bar."""
        self.bar.total = tally.total
        self.bar.n = round(tally.total - tally.left + sum(shares.values()), 2)
        self.bar.set_description_str(text)


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
def display() -> Iterator[Watcher]:
    """The display that suits where the output goes."""
    notebook = "ipykernel" in sys.modules
    if absent("tqdm") or not (notebook or sys.stdout.isatty()):
        yield Lines(sys.stdout)
        return
    form = None if notebook else "{desc} |{bar}|"
    with need("tqdm.auto", "lab").tqdm(
        total=1, file=sys.stdout, bar_format=form, dynamic_ncols=not notebook
    ) as bar:
        yield Bar(bar)
