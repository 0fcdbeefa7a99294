"""How much work a run in language is, and how long it would take here: a few steps, timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from risegrad.continual import run_pace
from risegrad.continual.devices import Devices
from risegrad.continual.language.hosts.lora_hosts import LanguageHost
from risegrad.continual.language.streams.text_stream_build import TextSplit, build_stream
from risegrad.continual.stream import Stream
from risegrad.continual.update_rules import Rule

if TYPE_CHECKING:
    from risegrad.continual.language.language_run import LanguageRun

TEXTS = 64
"""How many are answered to see how long that takes."""

MakeHost = Callable[["LanguageRun", Devices], LanguageHost]


def seconds(settings: LanguageRun, make_host: MakeHost) -> float:
    """About how many seconds the whole run would take here."""
    stream = build_stream(settings.stream)
    step, answer = _paces(_small(settings), make_host)
    return trained(settings, stream) * step + scored(settings, stream) * answer


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
    step = run_pace.step(host, settings, devices)
    answered = len(host.kit.stream[0].test)
    return step, run_pace.per_example(lambda: host.score([0]), answered, devices)


def work(settings: LanguageRun, stream: Stream[TextSplit]) -> dict[str, Any]:
    """Texts through the model, counted forward and backward; scoring included."""
    tests = _tests(settings, stream)
    rule = Rule(settings.rule.name or "fo", settings.rule.q)
    forward, backward = (1, 1) if rule.exact else (2 * rule.q, 0)
    passed = trained(settings, stream)
    return {
        "tasks": len(stream),
        "train texts": sum(len(task.train) for task in stream),
        "test texts": sum(tests),
        "forward": passed * forward + scored(settings, stream),
        "backward": passed * backward,
    }


def trained(settings: LanguageRun, stream: Stream[TextSplit]) -> int:
    """Texts of all training steps; those of known tasks are not among them."""
    return sum(len(task.train) for task in stream.tasks[stream.known :]) * settings.adapter.epochs


def scored(settings: LanguageRun, stream: Stream[TextSplit]) -> int:
    """Texts read for scores: every task so far after each, and the next ones if zero-shot.

    Known tasks are scored once before all training, and that counts as all their sessions.
    """
    tests, known = _tests(settings, stream), stream.known
    count = sum(sum(tests[: t + 1]) for t in range(known, len(tests)))
    if settings.host.zero_shot:
        return count + sum(tests) + sum(tests[known + 1 :])
    return count + sum(tests[:known])


def _tests(settings: LanguageRun, stream: Stream[TextSplit]) -> list[int]:
    return [len(getattr(task, settings.loop.score_on)) for task in stream]
