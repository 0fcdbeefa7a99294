"""Several processes for one run: the worker is the first of them and starts the others.

They find each other by the environment that torchrun would set, so the run itself needs to know
nothing of this. Only the first writes; when any of the others fails, the run fails.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from risegrad.lab.execute import Order

GRACE = 30.0  # seconds for the others to end after the first has


@contextmanager
def companions(order: Order) -> Iterator[None]:
    """Inside, this process is rank 0 of ``order.processes``."""
    if order.processes < 2:
        yield
        return
    before = dict(os.environ)
    os.environ |= meeting_point(order.processes) | {"RANK": "0", "LOCAL_RANK": "0"}
    others = [_start(order, rank) for rank in range(1, order.processes)]
    over = threading.Event()
    threading.Thread(target=_watch, args=(others, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()
        for other in others:
            _end(other)
        os.environ.clear()
        os.environ.update(before)


def meeting_point(count: int) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _start(order: Order, rank: int) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-m", "risegrad.lab.companions"],
        stdin=subprocess.PIPE,
        env=os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(order.plain()).encode() + b"\n")
    process.stdin.close()
    return process


def _watch(others: "list[subprocess.Popen[bytes]]", over: threading.Event) -> None:
    """Without the others the first would wait for them for ever."""
    while not over.wait(0.5):
        codes = [other.poll() for other in others]
        if any(code for code in codes) and not over.is_set():
            print(f"a process of this run ended with code {max(map(int, filter(None, codes)))}")
            os._exit(1)


def _end(other: "subprocess.Popen[bytes]") -> None:
    try:
        other.wait(GRACE)
    except subprocess.TimeoutExpired:
        other.kill()
        other.wait()


def main() -> int:
    """One of the others: the same work, without lock, report or record."""
    from risegrad.lab import workload

    order = Order(**json.loads(sys.stdin.readline()))
    work = workload.load(order.workload)
    work.perform(work.read_config(order.settings), Path(order.folder), lambda news: None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
