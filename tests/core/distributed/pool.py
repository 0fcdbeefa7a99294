"""Worker processes with a gloo process group, started once per world size and given job after job.

Starting processes and importing torch costs seconds, a job milliseconds; so one server imports
torch and is forked for every worker, and a pool lives as long as the tests. It is replaced only
after a failure, when its processes can no longer be trusted to stand at the same place.
"""

from __future__ import annotations

import datetime
import multiprocessing as mp
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from tail import PATIENCE

SHARDED = ("fsdp", "columns", "hybrid", "partly sharded", "tensor parallel")
"""Ways of cutting a model that need FSDP2, which in torch 2.6 runs on a GPU only."""


class WorkerError(AssertionError):
    """What the workers said before they failed."""


class Pool:
    def __init__(self, size: int) -> None:
        self.size = size
        self._workers: list[tuple[Any, Connection]] = []
        self._files: tempfile.TemporaryDirectory[str] | None = None

    def run(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        """``job(rank, size, *args)`` in every process; the results in the order of the ranks."""
        if torch.__version__ < (2, 7) and any(getattr(x, "engine", "") in SHARDED for x in args):
            pytest.skip("FSDP2 of torch 2.6 does not run on a CPU")
        if not self._workers:
            self._start()
        for _, pipe in self._workers:
            pipe.send((job, args))
        return self._answers(PATIENCE)

    def close(self) -> None:
        for process, pipe in self._workers:
            pipe.close()
            process.terminate()
        for process, _ in self._workers:
            process.join(10)
            if process.is_alive():
                process.kill()
        self._workers = []
        if self._files is not None:
            self._files.cleanup()

    def _start(self) -> None:
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["core.distributed.jobs", "torch._dynamo"])
        self._files = tempfile.TemporaryDirectory()
        meeting = (Path(self._files.name) / "meeting").as_uri()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # where the server looks
            for rank in range(self.size):
                ours, theirs = context.Pipe()
                arguments = (rank, self.size, meeting, theirs)
                process = context.Process(target=_serve, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._workers.append((process, ours))
        self._answers(PATIENCE)

    def _answers(self, seconds: float) -> list[Any]:
        deadline = time.monotonic() + seconds
        results, errors = [], []
        for rank, (_, pipe) in enumerate(self._workers):
            try:
                if not pipe.poll(max(deadline - time.monotonic(), 0.1)):
                    raise TimeoutError(f"no answer within {seconds:.0f} s")
                good, answer = pipe.recv()
            except (EOFError, OSError, TimeoutError) as error:
                good, answer = False, f"{type(error).__name__}: {error}"
            if good:
                results.append(answer)
            else:
                errors.append(f"--- rank {rank} of {self.size} ---\n{answer}")
        if errors:
            self.close()
            raise WorkerError("\n".join(errors))
        return results


def _serve(rank: int, size: int, meeting: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # A process that waits for one that failed gives up before the test's own patience ends.
    patience = datetime.timedelta(seconds=PATIENCE / 2)
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=size, timeout=patience
    )
    pipe.send((True, None))
    while True:
        try:
            job, args = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, job(rank, size, *args))
        except Exception:
            answer = (False, traceback.format_exc())
        pipe.send(answer)
