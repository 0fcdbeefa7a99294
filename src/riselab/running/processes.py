"""Several processes for one run, started and watched by torch's elastic launcher (torchrun).

The worker only waits for them, and has lock, log and record. When one of them fails, the launcher
ends the others and the run fails with that one's error; when one is killed, the run is lost as if
the worker itself had been killed, and goes on from its last checkpoint.
"""

import os
import pickle
import signal
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from riselab.running.worker import RunOrder

RANKS = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""What torchrun sets. A run's processes are its own: those of the calling process do not count."""


class Killed(RuntimeError):
    """A process of the run was ended from outside."""


def together(order: "RunOrder") -> Any:
    """What the first of ``order.processes`` processes returns from its part of the run."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with TemporaryDirectory(prefix="rise-") as place:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=order.processes,
            run_id=order.id,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,  # who goes on after a death is decided in one place, the schedule
            logs_specs=DefaultLogsSpecs(place),
        )
        try:
            return elastic_launch(config, _part)(order.plain(), place)[0]
        except ChildFailedError as error:
            raise _cause(error, Path(place)) from None
        except SignalException:  # we are being stopped, which is no failure of the run
            raise KeyboardInterrupt from None


def _part(plain: dict[str, Any], place: str) -> Any:
    """One of the processes. An error is left for the worker as it is, not only as text."""
    from torch import distributed

    from riselab.running.worker import RunOrder, perform, read_settings

    rank, order = int(os.environ["RANK"]), RunOrder(**plain)
    try:
        return perform(order, read_settings(order), first=rank == 0)
    except Exception as error:
        _leave(error, Path(place) / str(rank))
        # The launcher looks ten times a second and names one that is gone. A process that was
        # killed must be seen before those that fail for want of it.
        time.sleep(1)
        raise
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _leave(error: Exception, path: Path) -> None:
    text = traceback.format_exc()
    try:
        whole = pickle.dumps((error, text))
        pickle.loads(whole)  # some errors only fail here
    except Exception:
        whole = pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), text))
    path.write_bytes(whole)


def _cause(failed: "ChildFailedError", place: Path) -> Exception:
    """The error of the process that failed first, with its traceback."""
    rank, failure = failed.get_first_failure()
    if failure.exitcode < 0:
        return Killed(f"its process {rank} {death(failure.exitcode)}")
    if not (place / str(rank)).is_file():
        return RuntimeError(f"its process {rank} {death(failure.exitcode)}")
    # The launcher names one that was gone when it looked, perhaps for want of the one that failed.
    left = [path for path in place.iterdir() if path.is_file() and path.name.isdigit()]
    first = min(left, key=lambda path: path.stat().st_mtime_ns)
    rank = int(first.name)
    error, text = pickle.loads(first.read_bytes())
    assert isinstance(error, Exception)
    error.add_note(f"\nIn process {rank} of the run:\n{text.strip()}")
    return error


def death(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
