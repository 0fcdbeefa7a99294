"""The usual workload, which tells what each process did: its share, its checkpoints."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from riselab.continual import devices
from riselab.continual.checkpoints import Checkpoints
from riselab.continual.runs import estimate as estimate
from riselab.continual.runs import perform as usual
from riselab.continual.runs import read_config as read_config


def perform(settings: Any, folder: Path, report: Callable[[Mapping[str, Any]], None]) -> Any:
    told = {"mine": 0, "all": 0, "saved": 0, "rank": -1, "count": -1}
    share, save = devices.Devices.share, Checkpoints.save

    def sharing(self: devices.Devices, items: Sequence[Any]) -> Sequence[Any]:
        part = share(self, items)
        told["mine"] += len(part)
        told["all"] += len(items)
        told["rank"], told["count"] = self.rank, self.count
        return part

    def saving(self: Checkpoints, state: dict[str, Any]) -> Path:
        told["saved"] += 1
        return save(self, state)

    devices.Devices.share, Checkpoints.save = sharing, saving  # type: ignore[assignment,method-assign]
    result = usual(settings, folder, report)
    (folder / f"told-{os.getpid()}.json").write_text(json.dumps(told))
    return result
