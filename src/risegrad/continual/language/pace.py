"""How long a run in language would take here: a few steps and answers, and how many it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from risegrad.continual import pace
from risegrad.continual.devices import Devices
from risegrad.continual.language.build import build_stream
from risegrad.continual.language.hosts import LanguageHost
from risegrad.continual.language.work import scored

if TYPE_CHECKING:
    from risegrad.continual.language.run import LanguageRun

TEXTS = 64
"""How many are answered to see how long that takes."""

MakeHost = Callable[["LanguageRun", Devices], LanguageHost]


def seconds(settings: LanguageRun, make_host: MakeHost) -> float:
    stream = build_stream(settings.stream)
    trained = sum(len(task.train) for task in stream) * settings.adapter.epochs
    step, answer = _paces(_small(settings), make_host)
    return trained * step + scored(settings, stream) * answer


def _small(settings: LanguageRun) -> LanguageRun:
    """The same with a batch of texts per task."""
    stream = replace(
        settings.stream, train_size=settings.loop.batch, test_size=TEXTS, validation=0.0
    )
    loop = replace(settings.loop, score_on="test")
    return replace(settings, stream=stream, loop=loop, seed=0)


@cache
def _paces(settings: LanguageRun, make_host: MakeHost) -> tuple[float, float]:
    """Seconds of a text in a step, and of one that is answered and scored."""
    devices = Devices(settings.loop.precision, settings.loop.device)
    host = make_host(settings, devices)
    step = pace.step(host, settings, devices)
    answered = len(host.kit.stream[0].test)
    return step, pace.per_example(lambda: host.score([0]), answered, devices)
