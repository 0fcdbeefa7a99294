"""What exists, by section and name, with one line each."""

from __future__ import annotations


def catalogue() -> dict[str, dict[str, str]]:
    """Hosts, rules, additions and streams."""
    from risegrad.continual.additions import ADDITIONS
    from risegrad.continual.language.hosts.host_names import SUMMARIES
    from risegrad.continual.language.streams.text_tasks import DESCRIPTIONS as TEXT_STREAMS
    from risegrad.continual.update_rules import RULES
    from risegrad.continual.vision.hosts import HOSTS
    from risegrad.continual.vision.streams import DESCRIPTIONS

    return {
        "hosts": {name: host.summary for name, host in HOSTS.items()} | SUMMARIES,
        "rules": dict(RULES),
        "additions": {name: addition.summary for name, addition in ADDITIONS.items()},
        "streams": DESCRIPTIONS | TEXT_STREAMS,
    }
