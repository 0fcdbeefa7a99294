"""What exists, by section and name, with one line each."""

from __future__ import annotations

from risegrad import plugins


def catalogue() -> dict[str, dict[str, str]]:
    """Hosts, rules, streams, additions and models."""
    # Importing them fills the registers.
    from risegrad.continual import additions, update_rules  # noqa: F401
    from risegrad.continual.language.hosts.host_names import SUMMARIES
    from risegrad.continual.language.streams.text_tasks import DESCRIPTIONS as TEXT_STREAMS
    from risegrad.continual.vision import backbone, hosts, streams  # noqa: F401

    return {
        "hosts": {**plugins.HOSTS.lines(), **SUMMARIES},
        "rules": plugins.RULES.lines(),
        "streams": {**plugins.STREAMS.lines(), **TEXT_STREAMS},
        "additions": plugins.ADDITIONS.lines(),
        "models": plugins.MODELS.lines(),
    }
