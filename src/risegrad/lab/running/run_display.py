"""What ``rise run`` shows: a live table in a terminal, plain lines anywhere else."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from risegrad.common.optional_imports import absent, need
from risegrad.lab.running.run_progress import fraction, latest
from risegrad.lab.running.run_schedule import Running, Tally, Watcher
from risegrad.pages.text import visible, visible_lines

MOST_LINES = 16


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
        """Print the totals now and then."""
        if time.monotonic() - self.spoken < self.EVERY:
            return
        self.spoken = time.monotonic()
        shares = {name: fraction(latest(one.folder)) for name, one in tally.running.items()}
        self.say(totals(tally, self.pace.seconds_left(tally, shares)))


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


class Live:
    """The table; redrawn a few times a second, events scroll by above it."""

    PAUSE = 0.25

    def __init__(self, live: Any) -> None:
        self.live, self.drawn, self.pace = live, 0.0, Pace()

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self.live.console.print(visible_lines(text), markup=False, highlight=False)

    def tick(self, tally: Tally) -> None:
        """Draw the table again, now and then."""
        if time.monotonic() - self.drawn >= self.PAUSE:
            self.drawn = time.monotonic()
            self.live.update(self.table(tally), refresh=True)

    def table(self, tally: Tally) -> Any:
        """The table of the runs that are on their way."""
        from rich.table import Table
        from rich.text import Text

        news = {name: latest(one.folder) for name, one in tally.running.items()}
        shares = {name: fraction(words) for name, words in news.items()}
        left = self.pace.seconds_left(tally, shares)
        table = Table(title=Text(totals(tally, left)), title_justify="left", expand=False)
        for head in ("run", "seed", "done", "at", "loss", "acc", "time"):
            table.add_column(head, justify="left" if head in ("run", "at") else "right")
        for name, one in list(tally.running.items())[:MOST_LINES]:
            table.add_row(*map(Text, _cells(one, news[name], shares[name])))
        if len(tally.running) > MOST_LINES:
            table.add_row(f"and {len(tally.running) - MOST_LINES} more")
        return table


class ProgressBar:
    """A bar of tqdm, which notebooks draw as their own; events go above it."""

    PAUSE = 0.5

    def __init__(self, bar: Any) -> None:
        self.bar, self.drawn = bar, 0.0

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self.bar.write(visible_lines(text))

    def tick(self, tally: Tally) -> None:
        """Move the bar, now and then."""
        over = tally.running.keys() == set() and tally.left == 0
        if not over and time.monotonic() - self.drawn < self.PAUSE:
            return
        self.drawn = time.monotonic()
        shares = (fraction(latest(one.folder)) for one in tally.running.values())
        self.bar.total = tally.total
        self.bar.n = round(tally.total - tally.left + sum(shares), 2)
        self.bar.refresh()


def _cells(one: Running, news: dict[str, Any], share: float) -> list[str]:
    return [
        visible(one.cell.row.label),
        str(one.cell.seed),
        f"{100 * share:.0f} %",
        where(news) or "starting",
        _number(news.get("loss"), 4),
        _number(news.get("union"), 1),
        duration(time.monotonic() - one.since),
    ]


def where(news: dict[str, Any]) -> str:
    """``task 2/10, epoch 1/5, batch 3/40`` as far as it is known."""
    pairs = (("task", "tasks"), ("epoch", "epochs"), ("batch", "batches"))
    parts = [f"{one} {news[one]}/{news.get(many, '?')}" for one, many in pairs if one in news]
    return ", ".join(parts)


def _number(value: Any, digits: int) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else ""


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
def display(stream: TextIO | None = None) -> Iterator[Watcher]:
    """The display that suits where the output goes."""
    if stream is None and _in_notebook():
        with need("tqdm.auto", "lab").tqdm(total=1, unit="run", desc="runs") as bar:
            yield ProgressBar(bar)
        return
    stream = stream or sys.stdout
    if not stream.isatty():
        yield Lines(stream)
        return
    try:
        from rich.console import Console
        from rich.live import Live as RichLive
    except ImportError:
        yield Lines(stream)
        return
    with RichLive(console=Console(file=stream), auto_refresh=False) as live:
        yield Live(live)


def _in_notebook() -> bool:
    """Whether a Jupyter kernel shows what we print, and there is something to draw a bar with."""
    return "ipykernel" in sys.modules and not sys.stdout.isatty() and not absent("tqdm")
