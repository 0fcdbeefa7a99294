"""One run in its own process, ordered by a line of JSON.

Started as ``python -m risegrad.lab.running.run_worker``.

The order comes on standard input and the answer goes to standard output; what the run prints goes
to the error stream, which its log receives. Standard input stays open as long as somebody is
waiting: when it closes, the one who ordered is gone, and this process goes too.
"""

import json
import os
import signal
import sys
import threading

from risegrad.lab.running.run_execution import RunOrder, execute

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
LONGEST = 4000  # characters of an answer; a pipe holds them without a reader


def thread_limits(threads: int) -> dict[str, str]:
    """Environment variables that must be set before numpy and torch are imported."""
    return dict.fromkeys(THREADS, str(threads))


def main() -> int:
    """Read one order, do it, and answer how it ended."""
    answer = os.dup(1)
    os.dup2(2, 1)
    order = RunOrder(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_follow, daemon=True).start()
    outcome, message = execute(order)
    os.write(answer, json.dumps([outcome, message[:LONGEST]]).encode())
    return 0


def _follow() -> None:
    """End with the parent process, and end helpers (such as data loaders) too."""
    os.read(0, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
