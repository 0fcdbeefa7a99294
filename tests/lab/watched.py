"""The usual workload, which tells what each process did: its share, and the checkpoints it wrote.

``loop.batch = 5`` lets the second process fail, 7 lets it be killed, in the middle of the run.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from risegrad.continual import devices
from risegrad.continual.checkpoint import Checkpoints
from risegrad.continual.run import estimate as estimate
from risegrad.continual.run import perform as usual
from risegrad.continual.run import read_config as read_config


def perform(settings: Any, folder: Path, report: Callable[[Mapping[str, Any]], None]) -> Any:
    told = {"mine": 0, "all": 0, "saved": 0, "rank": -1, "count": -1, "shares": 0}
    share, save = devices.Devices.share, Checkpoints.save

    def sharing(self: devices.Devices, items: Sequence[Any]) -> Sequence[Any]:
        part = share(self, items)
        told["mine"] += len(part)
        told["all"] += len(items)
        told["shares"] += 1
        told["rank"], told["count"] = self.rank, self.count
        if self.rank == 1 and told["shares"] == 8:
            _misbehave(settings.loop.batch, folder)
        return part

    def saving(self: Checkpoints, state: dict[str, Any]) -> Path:
        told["saved"] += 1
        return save(self, state)

    devices.Devices.share, Checkpoints.save = sharing, saving  # type: ignore[assignment,method-assign]
    result = usual(settings, folder, report)
    (folder / f"told-{os.getpid()}.json").write_text(json.dumps(told))
    return result


def _misbehave(batch: int, folder: Path) -> None:
    if batch == 5:
        raise RuntimeError("not today")
    if batch == 7 and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
