"""A workload whose first process waits for the others, which fail."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def read_config(plain: Mapping[str, Any]) -> dict[str, Any]:
    return dict(plain)


def estimate(settings: Any) -> dict[str, Any]:
    return {}


def perform(settings: Any, folder: Path, report: Callable[[Mapping[str, Any]], None]) -> Any:
    if os.environ["RANK"] != "0":
        raise RuntimeError("not today")
    time.sleep(60)
