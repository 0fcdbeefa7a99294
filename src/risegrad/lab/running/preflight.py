"""Before the first run: what is missing, in one message, where the runs compute, and how long."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from risegrad.lab.experiments.run_cells import RunCell
from risegrad.lab.running.workload import Workload

NAMED = 3
"""How many rows are named beside what they lack."""

NO_GPU = (
    "these runs need a GPU and there is none here: --on-cpu runs them on the CPU all the same, and "
    "--check says about how long that takes"
)


@dataclass(frozen=True)
class Preflight:
    """What was found out about a grid without running it."""

    missing: tuple[str, ...]
    """a sentence for everything that is needed and not there"""
    places: tuple[str, ...]
    """the devices that the runs use, in words"""
    cpu: bool
    """whether one of them uses the CPU"""


def preflight(cells: Sequence[RunCell], work: Workload, out: Path, workers: int) -> Preflight:
    """Look at what every row needs; ``workers`` runs happen at a time."""
    asked = _rows(cells)
    known: dict[Any, Any] = {}
    found = {order: _needs(cell, work, known) for order, cell in asked.items()}
    rows: dict[str, list[str]] = {}
    for order, needs in found.items():
        for lack in needs.get("missing", ()):
            rows.setdefault(lack, []).append(asked[order].row.label)
    lines = [f"{lack}{_who(labels, len(asked))}" for lack, labels in rows.items()]
    most = max((int(needs.get("bytes", 0)) for needs in found.values()), default=0)
    lines += _room(out, most * min(workers, len(cells)))
    devices = dict(needs["device"] for needs in found.values() if "device" in needs)
    return Preflight(tuple(lines), tuple(devices.values()), "cpu" in devices)


def told(missing: Sequence[str], runs: int) -> str:
    """What is missing as one message."""
    head = f"{runs} runs cannot start, something is missing"
    return "\n".join([f"{head}:", *(f"- {line}" for line in missing)])


def fetch(cells: Sequence[RunCell], work: Workload) -> list[str]:
    """Download what may be, once and before workers would do it at once; why it failed."""
    load: Callable[[Any], None] | None = getattr(work, "fetch", None)
    if load is None:
        return []
    problems = []
    for cell in {_key(cell.settings, "stream"): cell for cell in cells}.values():
        try:
            load(work.read_config(cell.settings))
        except (OSError, ValueError, RuntimeError, ImportError) as error:
            problems.append(" ".join(str(error).split()))
    return problems


def seconds_of(cells: Sequence[RunCell], work: Workload) -> float | None:
    """About how long these runs take here, one at a time; None where the workload cannot say.

    Of the rows with one model the largest is timed; the others go by their passes through it.
    """
    clock: Callable[[Any], float] | None = getattr(work, "seconds", None)
    if clock is None:
        return None
    passes: dict[str, dict[int, float]] = {}
    for order, cell in _rows(cells).items():
        counts = work.estimate(work.read_config(cell.settings))
        rows = passes.setdefault(_key(cell.settings, "model"), {})
        rows[order] = max(counts.get("forward", 0) + 2 * counts.get("backward", 0), 1)
    total = 0.0
    for rows in passes.values():
        largest = max(rows, key=lambda order: rows[order])
        timed = next(cell for cell in cells if cell.order == largest)
        pace = clock(work.read_config(timed.settings)) / rows[largest]
        total += pace * sum(rows.get(cell.order, 0) for cell in cells)
    return total


def _rows(cells: Sequence[RunCell]) -> dict[int, RunCell]:
    """One cell for each row: its seeds need the same."""
    return {cell.order: cell for cell in cells}


def _key(settings: Mapping[str, Any], section: str) -> str:
    """The same for runs that agree in a section."""
    return json.dumps(settings.get(section), sort_keys=True, default=str)


def _needs(cell: RunCell, work: Workload, known: dict[Any, Any]) -> Mapping[str, Any]:
    ask = getattr(work, "needs", None)  # a workload need not know
    found: Mapping[str, Any] = ask(work.read_config(cell.settings), known) if ask else {}
    return found


def _who(labels: Sequence[str], rows: int) -> str:
    if len(labels) == rows:
        return ""
    shown = ", ".join(json.dumps(label, ensure_ascii=False) for label in labels[:NAMED])
    more = f" and {len(labels) - NAMED} more" if len(labels) > NAMED else ""
    return f" (for {shown}{more})"


def _room(out: Path, wanted: int) -> list[str]:
    there = next(place for place in (out.absolute(), *out.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    if free >= wanted:
        return []
    return [
        f"{_size(free)} are free in {out}, and checkpoints may need {_size(wanted)}: make room, or "
        "give another folder with --out"
    ]


def _size(count: int) -> str:
    """
    >>> _size(4_200_000_000), _size(1_000_000)
    ('4.2 GB', '1.0 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
