"""What a run needs and may lack, found out before the first run and without loading a model."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from risegrad.common.imports import absent, lack, need
from risegrad.core.blocks import listing
from riselab.continual.checkpoints import KEEP
from riselab.continual.devices import Devices
from riselab.continual.host import Host, silent
from riselab.continual.learning import Run, made_additions
from riselab.continual.training import SessionTraining

Known = dict[Any, list[str]]

PATIENCE = 10.0  # seconds for an answer of the hub
MODEL_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def missing_extras(modules: Iterable[str], extra: str, purpose: str) -> list[str]:
    """One sentence for each module that is not installed, with the extra that brings it."""
    return [lack(module, extra, purpose) for module in modules if absent(module)]


def complaint(attempt: Callable[[], object]) -> list[str]:
    """What an attempt to open something says if it fails."""
    try:
        attempt()
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        return [" ".join(str(error).split())]
    return []


def checkpoint_bytes(parameters: int) -> int:
    """Of a run that trains so many: values and two moments, in all files that exist at a time."""
    return parameters * 3 * 4 * (KEEP + 1)


def once(known: Known, find: Callable[[Any], list[str]], settings: Any) -> list[str]:
    """What ``find`` says of settings that many rows share; asked once while ``known`` lives."""
    if (find, settings) not in known:
        known[find, settings] = find(settings)
    return known[find, settings]


def off_hub(repository: str, kind: str = "model") -> str:
    """Why something on the Hugging Face hub cannot be had; "" if it is here already, or there."""
    extra = "language" if kind == "model" else "vision"
    # ``constants`` by itself: the package has it as an attribute only once something imported it.
    hub, constants = need("huggingface_hub", extra), need("huggingface_hub.constants", extra)
    if _cached(hub, constants.HF_HOME, repository, kind):
        return ""
    if constants.HF_HUB_OFFLINE:
        return "not in the local cache, and HF_HUB_OFFLINE forbids to ask for it"
    try:
        hub.HfApi().repo_info(repository, repo_type=kind, timeout=PATIENCE)
    except Exception as error:  # whatever the network does
        return f"not in the local cache, and the hub says {type(error).__name__}"
    return ""


def _cached(hub: Any, home: str, repository: str, kind: str) -> bool:
    if kind == "model":
        found = (hub.try_to_load_from_cache(repository, file) for file in MODEL_FILES)
        return any(isinstance(path, str) for path in found)
    place = os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets"
    return (Path(place) / repository.replace("/", "___")).is_dir()


REPEATS = 3
LONG = 5.0  # seconds: what takes longer is done once, and preparations are small beside it


def per_example(work: Callable[[], int], devices: Devices) -> float:
    """Seconds of one of the examples that the work is on; the median of a few, without the first,
    which also prepares."""
    (first, count), others = _time(work, devices), []
    if first < LONG:
        others = [_time(work, devices)[0] for _ in range(REPEATS)]
    return median(others or [first]) / count


def _time(work: Callable[[], int], devices: Devices) -> tuple[float, int]:
    started = time.perf_counter()
    count = work()
    if devices.device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - started, count


def step(host: Host, settings: Run, devices: Devices) -> float:
    """Seconds per example of the first session's training, loading, rule and optimizer included."""
    session = host.begin(0)
    if session is None:
        return 0.0
    additions = made_additions(settings)
    training = SessionTraining(session, settings.loop, devices, additions, settings.seed)

    def epoch() -> int:
        training.epoch(0, silent)
        return session.examples

    return per_example(epoch, devices)


Counts = Iterable[tuple[str, int]]
"""Names of classes or tasks, and how many examples each has."""


def too_few(setting: str, wanted: int, there: Counts) -> tuple[str, ...]:
    """A note if a setting asks for more examples than there are; ``wanted`` 0 asks for all.

    >>> too_few("train_size", 300, [("CB", 250), ("RTE", 2000)])
    ('train_size=300 is more than there is: CB has 250',)
    """
    short = [f"{name} has {count}" for name, count in there if count < wanted]
    return (f"{setting}={wanted} is more than there is: {listing(short)}",) if short else ()


def untested(there: Counts, task: str = "") -> tuple[str, ...]:
    """A note if there are classes without a test example: nothing says how well they are known.

    >>> untested([("entailment", 23), ("neutral", 0)], "CB")
    ('CB: no test examples for neutral',)
    """
    without = [name for name, count in there if not count]
    where = f"{task}: " if task else ""
    return (f"{where}no test examples for {listing(without)}",) if without else ()
