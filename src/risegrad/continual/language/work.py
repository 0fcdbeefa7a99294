"""How much work a run is, before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from risegrad.continual.language.build import TextSplit
from risegrad.continual.rules import Rule
from risegrad.continual.stream import Stream

if TYPE_CHECKING:
    from risegrad.continual.language.run import LanguageRun


def work(settings: LanguageRun, stream: Stream[TextSplit]) -> dict[str, Any]:
    """Texts through the model, counted forward and backward; scoring included."""
    sizes = [len(task.train) for task in stream]
    tests = _tests(settings, stream)
    rule = Rule(settings.rule.name or "fo", settings.rule.q)
    forward, backward = (1, 1) if rule.exact else (2 * rule.q, 0)
    trained = sum(sizes) * settings.adapter.epochs
    return {
        "tasks": len(stream),
        "train texts": sum(sizes),
        "test texts": sum(tests),
        "forward": trained * forward + scored(settings, stream),
        "backward": trained * backward,
    }


def scored(settings: LanguageRun, stream: Stream[TextSplit]) -> int:
    """Texts read for scores: every task so far after each, and the next ones if zero-shot."""
    tests = _tests(settings, stream)
    count = sum(n * (len(tests) - i) for i, n in enumerate(tests))
    return count + (sum(tests) + sum(tests[1:]) if settings.host.zero_shot else 0)


def _tests(settings: LanguageRun, stream: Stream[TextSplit]) -> list[int]:
    return [len(getattr(task, settings.loop.score_on)) for task in stream]
