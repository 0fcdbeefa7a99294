"""The saved form of an attachment: plain data inside the optimizer's own state.

It rides in the first parameter group, because that survives every way in which people save
optimizers: ``torch.save``, accelerate, Lightning, and the distributed checkpoints that rebuild the
state from its groups. Several attachments of one optimizer have one entry each and find their own
by its settings: attachments are disjoint, so no two have the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

from risegrad.core.blocks import Layout

KEY = "risegrad"
VERSION = 1
OLDER = {"stream": 0, "match": "norm"}
"""Settings that some saved states are older than, and what they were in effect."""
MARK = "attached"
"""Stands under KEY in the live groups: torch's flattened distributed checkpoints
(``flatten_optimizer_state_dict``) load only what they find there."""

Groups = list[dict[str, Any]]


class Saved(NamedTuple):
    """How far an attachment was: its step, and what that one left to the next."""

    step: int
    carried: Mapping[str, float]


def describe_layout(layout: Layout) -> dict[str, object]:
    """Enough to tell whether two layouts draw the same numbers for the same parameters."""
    text = repr((layout.names, layout.sizes, [(row.d, row.q, row.count) for row in layout.rows]))
    return {
        "parameters": len(layout.names),
        "elements": sum(layout.sizes),
        "blocks": len(layout.d),
        "digest": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def put(state_dict: dict[str, Any], entry: Mapping[str, object]) -> None:
    """Add an attachment's entry to an optimizer's state dict."""
    first = state_dict["param_groups"][0]
    entries = first[KEY] if _has_entries(first) else {}
    free = next(key for key in map(str, count()) if key not in entries)
    first[KEY] = {**entries, free: dict(entry)}


def mark(groups: Groups) -> None:
    """Say in an optimizer's own groups that it has attachments."""
    groups[0].setdefault(KEY, MARK)


def unmark(groups: Groups) -> None:
    """Remove our key from the groups that have no entry left."""
    for group in groups:
        if KEY in group and not _has_entries(group):
            del group[KEY]


def groups_of(state_dict: object) -> Groups:
    """The parameter groups of an optimizer's state, or an error if it is not one."""
    groups = state_dict.get("param_groups") if isinstance(state_dict, Mapping) else None
    if not (isinstance(groups, list) and groups and all(isinstance(g, Mapping) for g in groups)):
        raise ValueError(
            "damaged optimizer state: expected a mapping with a list of param_groups, got "
            + (f"keys {list(state_dict)}" if isinstance(state_dict, Mapping) else repr(state_dict))
        )
    return groups


def take(groups: Groups, settings: Mapping[str, object]) -> tuple[Groups, Saved | None]:
    """Groups without the entry made with these settings, and what it says (None: no entry)."""
    for number, group in enumerate(groups):
        if _has_entries(group):
            entries = group[KEY]
            key, found = _own_entry(entries, settings)
            rest = {other: entry for other, entry in entries.items() if other != key}
            cleaned = {name: value for name, value in group.items() if name != KEY}
            if rest:
                cleaned[KEY] = rest
            return [*groups[:number], cleaned, *groups[number + 1 :]], found
    return groups, None


def saved_settings(groups: Groups) -> list[Mapping[str, object]]:
    """The settings of every entry that was loaded and that no attachment has taken yet."""
    held = [group[KEY] for group in groups if _has_entries(group)]
    entries = [entry for found in held if isinstance(found, Mapping) for entry in found.values()]
    settings = [entry.get("settings") for entry in entries if isinstance(entry, Mapping)]
    return [found for found in settings if isinstance(found, Mapping)]


def checked(entry: object, settings: Mapping[str, object]) -> Saved:
    """What a saved entry says, if it is whole and was made with the same settings."""
    found, different = _read(entry, settings)
    if different:
        raise _other_settings(different)
    return found


def _has_entries(group: Mapping[str, object]) -> bool:
    return group.get(KEY, MARK) != MARK


def _own_entry(entries: object, settings: Mapping[str, object]) -> tuple[str, Saved]:
    if not isinstance(entries, Mapping) or not entries:
        raise ValueError(f"damaged risegrad state: expected a mapping of entries, got {entries!r}")
    read = {key: _read(entry, settings) for key, entry in entries.items()}
    key, (found, different) = min(read.items(), key=lambda item: len(item[1][1]))
    if different:
        raise _other_settings(different)
    return key, found


def _read(entry: object, settings: Mapping[str, object]) -> tuple[Saved, list[str]]:
    """What an entry says and in what it differs from these settings."""
    if not isinstance(entry, Mapping) or not {"version", "step", "settings"} <= set(entry):
        raise ValueError(
            f"damaged risegrad state: expected version, step and settings, got {entry!r}"
        )
    if entry["version"] != VERSION:
        raise ValueError(
            f"risegrad state has version {entry['version']!r}; this risegrad reads {VERSION}"
        )
    step = entry["step"]
    if isinstance(step, int) and step >= 2**63:
        raise ValueError(f"damaged risegrad state: step must be below 2**63, got {step}")
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"damaged risegrad state: step must be an integer >= 0, got {step!r}")
    saved = Saved(step, _carried(entry.get("carried", {})))
    return saved, _differences(entry["settings"], settings)


def _carried(numbers: object) -> Mapping[str, float]:
    values = numbers.values() if isinstance(numbers, Mapping) else [None]
    if not all(isinstance(x, float) and math.isfinite(x) for x in values):
        raise ValueError(
            f"damaged risegrad state: carried must be finite numbers by name, got {numbers!r}"
        )
    return dict(numbers)  # type: ignore[call-overload, no-any-return]  # a mapping, as checked


def _differences(saved: object, current: Mapping[str, object]) -> list[str]:
    if not isinstance(saved, Mapping):
        raise ValueError(f"damaged risegrad state: settings must be a mapping, got {saved!r}")
    saved = {name: was for name, was in OLDER.items() if name in current} | dict(saved)
    return [
        f"{name}: saved {saved.get(name)!r}, here {current.get(name)!r}"
        for name in dict.fromkeys([*saved, *current])
        if _filled(saved.get(name)) != _filled(current.get(name))
    ]


def _filled(value: object) -> object:
    # torch's distributed checkpoints drop empty containers, so absent and empty mean the same.
    return None if value in ([], {}) else value


def _other_settings(different: list[str]) -> ValueError:
    return ValueError(
        f"this state was saved with other settings: {'; '.join(different)} (to start over from it, "
        f"delete {KEY!r} from its first parameter group and load it before attaching)"
    )
