"""A workload of several processes that only add up, and what can happen to the second of them."""

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from riselab.continual.devices import Devices


def read_config(plain: Mapping[str, Any]) -> dict[str, Any]:
    return dict(plain)


def estimate(settings: Any) -> dict[str, Any]:
    return {}


def perform(settings: Any, folder: Path, report: Callable[[Mapping[str, Any]], None]) -> Any:
    devices, name = Devices(device="cpu"), settings["host"]["name"]
    for step in range(1000 if name == "long" else 4):
        report({"task": 1, "tasks": 1})
        total = devices.total(torch.ones(()))
        assert total == devices.count
        if step == 2 and devices.rank == 1:
            _misbehave(name, folder)
        time.sleep(0.05 if name == "long" else 0)
    return {
        "tasks": [{"name": "only"}],
        "scores": {"top1": {"matrix": [[50.0]], "union": [50.0]}},
        "main_score": "top1",
        "metrics": {"avg": 50.0, "last": 50.0, "forgetting": 0.0},
        "losses": [],
        "notes": [f"{devices.count} processes"],
    }


def _misbehave(name: str, folder: Path) -> None:
    if name == "fails":
        raise RuntimeError("not today")
    if name == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "checkpoint"))
    if name == "killed" and not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
