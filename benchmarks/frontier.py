"""A search for the frontier: how much of its time is training and scoring."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.timing import Ratio, at_least
from riselab.continual.vision import base
from riselab.continual.vision.base import train_base
from riselab.continual.vision.models import Head
from riselab.continual.vision.streams.sources import digits, turned
from riselab.frontier.found import FoundFrontier
from riselab.frontier.problem import FrontierSettings
from riselab.frontier.search import frontier

# Seeds, rates and teaching as they are by default.
SETTINGS = FrontierSettings(seeds=3, rates=3, epochs=20, teach=20, examples=1000)
METHODS = ("adamw", "sgd", "rise")


def save_digits(folder: Path, name: str, degrees: float) -> Path:
    """scikit-learn's digits, turned, as an ``.npz``."""
    source, found = digits(0.2), dict[str, Any]()
    for part, images in (("train", source.train), ("test", source.test)):
        loaded = [turned(images.load(i), degrees)[0] for i in range(len(images))]
        found[f"{part}_images"] = torch.stack(loaded).numpy().astype(np.uint8)
        found[f"{part}_labels"] = images.labels
    np.savez(folder / f"{name}.npz", **found)
    return folder / f"{name}.npz"


@contextmanager
def teaching() -> Iterator[list[float]]:
    """Seconds in which the network was taught beforehand: training too, but in no record."""
    taken = list[float]()

    def timed(*given: Any) -> Head:
        began = time.perf_counter()
        head = train_base(*given)
        taken.append(time.perf_counter() - began)
        return head

    with patch.object(base, "train_base", timed):
        yield taken


def spent(found: FoundFrontier) -> float:
    """Seconds of training and scoring in all records."""
    parts = [(*r.run.seconds.train, *r.run.seconds.score) for r in found.records]
    return sum(seconds or 0.0 for part in parts for seconds in part)


def run() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as name, teaching() as taught:
        folder = Path(name)
        keep, new = (save_digits(folder, n, d) for n, d in (("upright", 0), ("turned", 60)))
        began = time.perf_counter()
        found = frontier(
            "mlp", keep=keep, new=new, minutes=60, methods=METHODS, out=folder / "out",
            settings=SETTINGS, show=False,
        )  # fmt: skip
        share = (spent(found) + sum(taught)) / (time.perf_counter() - began)
    detail = (
        f"{len(found.records)} runs, {len(taught)} bases taught, threads: {torch.get_num_threads()}"
    )
    yield at_least(
        "rise frontier: part of its time in teaching, training and scoring", share, 0.9, detail
    )
