"""Records of runs that were not the lab's: someone's own training, metered for forgetting.

The kept tasks stand first, as known from the start: their sessions are over when training begins,
so their rows of the matrix hold the scores from before it. The new task, if any, is the last row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import fsum
from pathlib import Path
from typing import Any

from risegrad.common.atomic_files import write_json
from risegrad.common.environment import environment, memory
from risegrad.common.record_seal import SCHEMA, digest, sealed

Percents = Mapping[str, float]


@dataclass(frozen=True)
class MeteredRun:
    """Where a run of one's own stands in a table, and what it was."""

    experiment: str = "own runs"
    """Rows of one experiment stand in one table."""
    label: str = "own training"
    """Runs with the same label, differing in the seed only, form one row."""
    seed: int | None = None
    """None: the trainer's own, or 0."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings, as plain data; they make the run's id."""
    baseline: bool = False
    """Whether other rows are compared with this one."""
    method: str = ""
    """Of a sweep: what all its settings are called together, such as ``FO``."""
    swept: str = ""
    """Of a sweep: the run's own setting, such as ``lr=0.001``."""
    started: str = field(default_factory=lambda: _now())
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("experiment", "label"):
            if not str(getattr(self, name)).strip():
                raise ValueError(f"{name} must be a text, got {getattr(self, name)!r}")


def write_own_run(
    path: Path,
    run: MeteredRun,
    tasks: Mapping[str, int],
    kept: Sequence[str],
    percents: tuple[Percents, Percents],
    score: str,
) -> None:
    """A record of scores before and after training; ``tasks`` says how many examples of each."""
    seed = run.seed or 0
    settings = dict(run.config) | {"seed": seed, "label": run.label, "tasks": [*tasks]}
    identity = {"settings": settings, "inputs": {}}
    row = {"label": run.label, "baseline": run.baseline}
    if run.method:
        row |= {"method": run.method, "swept": run.swept}
    content = {
        "schema": SCHEMA,
        "id": digest(identity),
        "identity": identity,
        "experiment": run.experiment,
        "row": row,
        "seed": seed,
        "config": settings,
        "result": _result(tasks, kept, percents, score) | {"notes": [*run.notes]},
        "run": {
            "started": run.started,
            "finished": _now(),
            "environment": environment(),
            "memory": memory(),
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, sealed(content))


def _result(
    tasks: Mapping[str, int],
    kept: Sequence[str],
    percents: tuple[Percents, Percents],
    score: str,
) -> dict[str, Any]:
    before, after = percents
    names = list(tasks)
    matrix = [[before[name] for name in names[: t + 1]] for t in range(len(names))]
    # Without a new task the last row is still the one after training: that is what was kept.
    matrix[-1] = [after[name] for name in names]
    learned = [after[name] for name in names if name not in kept]
    known = [before[name] - after[name] for name in kept]
    lost = [max(0.0, gone) for gone in known]
    average = fsum(matrix[-1]) / len(names)
    found = {
        "avg": average,
        "last": matrix[-1][-1],
        "forgetting": sum(lost) / len(lost),
        "forgetting_max_last": sum(lost) / len(lost),
        "forgetting_diagonal_last": sum(known) / len(known),
        "backward_transfer": -sum(known) / len(known),
        "final_average": average,
        "plasticity": learned[0] if learned else None,
    }
    return {
        "tasks": [{"name": n, "test": tasks[n]} | _known(n in kept) for n in names],
        "scores": {score: {"matrix": matrix, "union": []}},
        "main_score": score,
        "metrics": found,
        # Of kept tasks the matrix has it, unless there is no other row than the last.
        "before": {score: [None if n in kept and learned else before[n] for n in names]},
    }


def _known(known: bool) -> dict[str, bool]:
    return {"known": True} if known else {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
