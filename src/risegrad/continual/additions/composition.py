"""What composes with what: hosts say what they offer, additions what they need."""

from __future__ import annotations

from collections.abc import Sequence

from risegrad.continual.additions.addition import Addition
from risegrad.continual.host import Host
from risegrad.continual.session import Session


def check_composition(host: type[Host], additions: Sequence[Addition]) -> None:
    """Refuse additions that would do nothing, or undo each other, before anything runs."""
    for addition in additions:
        reason = _nothing_to_do(host, addition)
        if reason:
            raise ValueError(
                f"addition {addition.name!r} does not compose with host {host.name!r}: {reason}"
            )
    names = [addition.name for addition in additions]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"additions must be different, got {name!r} {names.count(name)} times")


def check_session(session: Session, addition: Addition) -> None:
    """Refuse a session whose rules or offers do not fit, before its first step."""
    for group in session.groups:
        if addition.needs_exact and not group.rule.exact:
            raise ValueError(
                f"addition {addition.name!r} needs exact gradients, but group {group.name!r} has "
                f"rule {group.rule.name!r}"
            )
    if addition.needs_logits and (session.logits is None or session.loss_of_logits is None):
        raise ValueError(
            f"addition {addition.name!r} needs the scores of all classes seen, and the host's "
            "session offers none (logits, loss_of_logits)"
        )
    addition.check(session)


def _nothing_to_do(host: type[Host], addition: Addition) -> str:
    if host.trains == "never":
        return "nothing trains there"
    if addition.every_class and not host.masks_classes:
        return "its loss knows no classes to leave out, so it is over all of them anyway"
    if not addition.needs_past:
        return ""
    if host.trains == "first":
        return "only its first session trains, so there is no earlier one to protect"
    if not host.keeps_parameters and not (addition.in_weights and host.adds_to_layers):
        return "every session trains new parameters and freezes them, so nothing drifts"
    return ""
