"""One run after the other in a process of their own, each ordered by a line of JSON.

Started as ``python -m risegrad.lab.running.run_worker``.

Orders come on standard input, and for each a line with the answer goes to standard output; what a
run prints goes to its log. Standard input stays open as long as somebody is waiting: when it
closes, the one who ordered is gone, and this process goes too.
"""

import gc
import json
import os
import queue
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from risegrad.lab.running.run_execution import UNWRITABLE, RunOrder, execute, unwritable
from risegrad.lab.running.run_folder import LOG

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
LONGEST = 4000  # characters of an answer; a pipe holds them without a reader


def thread_limits(threads: int) -> dict[str, str]:
    """Environment variables that must be set before numpy and torch are imported."""
    return dict.fromkeys(THREADS, str(threads))


def main() -> None:
    """Do what is ordered, and answer how it ended, until nobody is waiting any more."""
    answers = os.dup(1)
    os.dup2(2, 1)
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_follow, args=(orders,), daemon=True).start()
    while True:
        outcome, message = logged(RunOrder(**json.loads(orders.get())))
        os.write(answers, json.dumps([outcome, message[:LONGEST]]).encode() + b"\n")
        gc.collect()  # after the answer: what the run held must not stay for the next


def logged(order: RunOrder) -> tuple[str, str]:
    """Do a run; what it prints goes to the log in its folder."""
    folder = Path(order.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        return UNWRITABLE, unwritable(folder, error)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    try:
        return execute(order)
    finally:  # what was printed belongs to this run's log, not to the next one's
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()


def _follow(orders: "queue.SimpleQueue[bytes]") -> None:
    """Pass on orders; end with the parent process, and end helpers (such as data loaders) too."""
    rest = b""
    while part := os.read(0, 2**16):  # not sys.stdin, whose lock a forked helper would wait for
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            orders.put(line)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
