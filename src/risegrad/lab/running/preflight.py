"""What the runs of a grid need and is not there: all of it in one message, before the first run."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from risegrad.lab.experiments.run_cells import RunCell
from risegrad.lab.running.workload import Workload

NAMED = 3
"""How many rows are named beside what they lack."""


def preflight(cells: Sequence[RunCell], work: Workload, out: Path, workers: int) -> str:
    """The message, or nothing; ``workers`` runs happen at a time."""
    asked = {cell.order: cell for cell in cells}  # the seeds of a row need the same
    known: dict[Any, Any] = {}
    found = {order: _needs(cell, work, known) for order, cell in asked.items()}
    rows: dict[str, list[str]] = {}
    for order, needs in found.items():
        for lack in needs.get("missing", ()):
            rows.setdefault(lack, []).append(asked[order].row.label)
    lines = [f"{lack}{_who(labels, len(asked))}" for lack, labels in rows.items()]
    most = max((int(needs.get("bytes", 0)) for needs in found.values()), default=0)
    lines += _room(out, most * min(workers, len(cells)))
    if not lines:
        return ""
    head = f"{len(cells)} runs cannot start, something is missing"
    return "\n".join([f"{head}:", *(f"- {line}" for line in lines)])


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
    free = shutil.disk_usage(out).free
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
