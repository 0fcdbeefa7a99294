"""Which run is next: those that are not done, each once, until all have ended one way or another.

Every cell is looked at once at the beginning and once when its turn comes, whatever the size of the
grid. Runs that another ``rise run`` is at are passed over and waited for at the end.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from riselab.experiments.cells import RunCell
from riselab.running import folder as run_lock
from riselab.running.folder import State, error_text, look
from riselab.running.worker import (
    DONE,
    ELSEWHERE,
    FAILED,
    LOST,
    UNWRITABLE,
    RunOrder,
    fail,
    unwritable,
)


class Ended(NamedTuple):
    """How one run ended."""

    id: str
    outcome: str
    message: str


class Engine(Protocol):
    """Where runs happen."""

    workers: int

    def free(self) -> bool:
        """Whether one more order can be started now."""

    def start(self, order: RunOrder) -> None:
        """Start one run; only while ``free()``."""

    def poll(self, seconds: float) -> Sequence[Ended]:
        """What ended; waits at most so long for something to end."""

    def stop(self) -> None:
        """End all that is running; what runs left on disk stays good."""


RETRIES = 3
"""How often a run is continued after its worker died without a message."""

PATIENCE = 1.0  # seconds between two looks at what runs elsewhere
POLL = 0.1


class Unwritable(RuntimeError):
    """The output folder cannot be written any more: no run can continue."""


@dataclass
class Running:
    """A run that is on its way."""

    cell: RunCell
    folder: Path
    since: float


@dataclass
class Tally:
    """Where things stand; displays read it, only the schedule writes it."""

    total: int
    before: int = 0
    """done when we came"""
    done: int = 0
    """since then, here or elsewhere"""
    failed: dict[str, tuple[RunCell, str]] = field(default_factory=dict)
    """with the reason, a traceback where there is one"""
    running: dict[str, Running] = field(default_factory=dict)
    elsewhere: dict[str, RunCell] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """How many runs have not ended yet."""
        return self.total - self.before - self.done - len(self.failed)


class Watcher(Protocol):
    """Gets a report of every event of the runs."""

    def say(self, text: str) -> None:
        """Show one line of text."""

    def tick(self, tally: Tally) -> None:
        """Show the current state; called often."""


class Schedule:
    """Starts the runs of a grid on an engine and keeps the tally."""

    def __init__(
        self,
        cells: Sequence[RunCell],
        out: Path,
        order: Callable[[RunCell], RunOrder],
        watcher: Watcher,
    ) -> None:
        self.cells = {cell.id: cell for cell in cells}
        self.out, self.order, self.watcher = out, order, watcher
        self.tally = Tally(total=len(self.cells))
        self.queue: deque[RunCell] = deque()
        self.lost: Counter[str] = Counter()
        self.retry_failed = False
        self._looked = 0.0

    def sort(self, retry_failed: bool = False) -> None:
        """What is done, what failed before and is not to be retried, and what is to do."""
        self.retry_failed = retry_failed
        for cell in self.cells.values():
            folder = self.out / cell.folder
            state, reason = look(folder, cell)
            if state is State.DONE:
                self.tally.before += 1
            elif state is State.FAILED and not retry_failed and not run_lock.taken(folder):
                self.tally.failed[cell.id] = (cell, error_text(folder))
            else:
                if state is State.BROKEN:
                    self.watcher.say(
                        f"{folder / 'record.json'} {reason}: set aside as record.json.broken, "
                        f"the run is repeated"
                    )
                self.queue.append(cell)

    def run(self, engine: Engine) -> Tally:
        """Until every cell is done or failed; an ``Unwritable`` ends it at once."""
        while self.queue or self.tally.running or self.tally.elsewhere:
            self._fill(engine)
            for ended in engine.poll(POLL):
                self._end(ended)
            if not self.queue and self.tally.elsewhere and engine.free():
                self._look_elsewhere()
            self.watcher.tick(self.tally)
        return self.tally

    def _fill(self, engine: Engine) -> None:
        while self.queue and engine.free():
            cell = self.queue.popleft()
            folder = self.out / cell.folder
            if run_lock.taken(folder):
                self._pass_over(cell, run_lock.holder(folder))
            elif not self._settled(cell, folder):
                self._start(engine, cell, folder)

    def _settled(self, cell: RunCell, folder: Path) -> bool:
        """Whether another ``rise run`` has dealt with it in the meantime."""
        state, _ = look(folder, cell)
        if state is State.DONE:
            self._done(cell, "done elsewhere")
        elif state is State.FAILED and not self.retry_failed:
            self.tally.failed[cell.id] = (cell, error_text(folder))
            self.watcher.say(f"{cell.title}: failed elsewhere")
        else:
            return False
        return True

    def _start(self, engine: Engine, cell: RunCell, folder: Path) -> None:
        self.tally.running[cell.id] = Running(cell, folder, time.monotonic())
        try:
            engine.start(self.order(cell))
        except OSError as error:
            raise Unwritable(unwritable(folder, error)) from error
        self.watcher.say(f"{cell.title}: started")

    def _end(self, ended: Ended) -> None:
        running = self.tally.running.pop(ended.id)
        cell = running.cell
        if ended.outcome == DONE:
            self._done(cell, f"done in {time.monotonic() - running.since:.1f} s")
        elif ended.outcome == ELSEWHERE:
            self._pass_over(cell, ended.message)
        elif ended.outcome == UNWRITABLE:
            raise Unwritable(ended.message)
        elif ended.outcome == LOST and self.lost[ended.id] < RETRIES:
            self.lost[ended.id] += 1
            self.watcher.say(f"{cell.title}: {ended.message}; continues from its last checkpoint")
            self.queue.appendleft(cell)
        else:
            self._fail(cell, running.folder, ended)

    def _fail(self, cell: RunCell, folder: Path, ended: Ended) -> None:
        if ended.outcome != FAILED:
            try:
                fail(folder, f"{ended.message}, {RETRIES + 1} times; see log.txt\n")
            except OSError as error:
                raise Unwritable(unwritable(folder, error)) from error
        self.tally.failed[cell.id] = (cell, error_text(folder) or ended.message)
        self.watcher.say(f"{cell.title}: failed, {ended.message}")

    def _done(self, cell: RunCell, words: str) -> None:
        self.tally.done += 1
        self.watcher.say(f"{cell.title}: {words}")

    def _pass_over(self, cell: RunCell, who: str) -> None:
        if cell.id not in self.tally.elsewhere:
            self.watcher.say(f"{cell.title}: running elsewhere ({who})")
        self.tally.elsewhere[cell.id] = cell

    def _look_elsewhere(self) -> None:
        """Nothing else is to be started: which of those are free or done by now?"""
        if time.monotonic() - self._looked < PATIENCE:
            return
        self._looked = time.monotonic()
        for cell in list(self.tally.elsewhere.values()):
            folder = self.out / cell.folder
            if not run_lock.taken(folder):
                del self.tally.elsewhere[cell.id]
                if not self._settled(cell, folder):
                    self.queue.append(cell)
