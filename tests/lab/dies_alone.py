"""A workload whose first process waits for the others, which fail."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from risegrad.continual.run import read_config as read_config


def estimate(settings: Any) -> dict[str, Any]:
    return {}


def perform(settings: Any, folder: Path, report: Callable[[Mapping[str, Any]], None]) -> Any:
    if os.environ["RANK"] != "0":
        raise RuntimeError("not today")
    time.sleep(60)
