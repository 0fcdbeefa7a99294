"""What exists, by section and name, with one line each."""

from __future__ import annotations

from typing import Any

from risegrad import plugins


def catalogue() -> dict[str, dict[str, str]]:
    """Hosts, rules, streams, additions and models."""
    # Importing them fills the registers.
    from risegrad.continual import additions, update_rules  # noqa: F401
    from risegrad.continual.language.hosts.host_names import SUMMARIES
    from risegrad.continual.language.streams.text_tasks import DESCRIPTIONS as TEXT_STREAMS
    from risegrad.continual.vision import backbone, hosts, streams  # noqa: F401

    return {
        "hosts": {**_lines(plugins.HOSTS), **SUMMARIES},
        "rules": _lines(plugins.RULES),
        "streams": {**_lines(plugins.STREAMS), **TEXT_STREAMS},
        "additions": _lines(plugins.ADDITIONS),
        "models": _lines(plugins.MODELS),
    }


def _lines(register: plugins.Register[Any]) -> dict[str, str]:
    """The summaries; behind those of a plugin stands which it is."""
    return {name: _line(register, name) for name in register}


def _line(register: plugins.Register[Any], name: str) -> str:
    origin = register.origin(name)
    return register.summary(name) + (f" [{origin}]" if origin != plugins.OURS else "")
