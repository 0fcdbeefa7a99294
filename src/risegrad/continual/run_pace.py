"""How long things take per example, on the device that a run would use."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from risegrad.continual.additions.run_memory import made_additions
from risegrad.continual.devices import Devices
from risegrad.continual.host import Host
from risegrad.continual.session import silent
from risegrad.continual.session_training import SessionTraining
from risegrad.continual.stream_learning import RunSettings

REPEATS = 3
LONG = 5.0  # seconds: what takes longer is done once, and preparations are small beside it


def per_example(work: Callable[[], object], examples: int, devices: Devices) -> float:
    """Seconds; the median of a few, without the first, which also prepares."""
    first, *others = [_time(work, devices)]
    if first < LONG:
        others = [_time(work, devices) for _ in range(REPEATS)]
    return median(others or [first]) / examples


def _time(work: Callable[[], object], devices: Devices) -> float:
    started = time.perf_counter()
    work()
    if devices.device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - started


def step(host: Host, settings: RunSettings, devices: Devices) -> float:
    """Seconds per example of the first session's training, loading, rule and optimizer included."""
    session = host.begin(0)
    if session is None:
        return 0.0
    additions = made_additions(settings)
    training = SessionTraining(session, settings.loop, devices, additions, settings.seed)
    return per_example(lambda: training.epoch(0, silent), session.examples, devices)
