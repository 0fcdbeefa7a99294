"""Records of runs outside the lab: your own training, metered for forgetting.

The kept tasks come first, as known from the start: their sessions are over when training begins,
so their rows of the matrix have the scores from before it. The new task, if any, is the last row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from risegrad.common.environment import environment, memory
from risegrad.common.files import write_json, write_text
from risegrad.common.seal import SCHEMA, digest, sealed

if TYPE_CHECKING:
    from risegrad.integrations.forgetting_meter import ForgettingMeter, MeterReading


Percents = Mapping[str, float]


@dataclass(frozen=True)
class MeteredRun:
    """The place of your run in a table, and its settings."""

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
    path: Path, run: MeteredRun, tasks: Mapping[str, int], result: dict[str, Any]
) -> None:
    """A record of a run's result; ``tasks`` says how many examples of each there were."""
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
        "result": result | {"notes": [*run.notes]},
        "run": {
            "started": run.started,
            "finished": _now(),
            "environment": environment(),
            "memory": memory(),
        },
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, sealed(content))


def result_of(
    tasks: Mapping[str, int], kept: Sequence[str], before: Percents, after: Percents, score: str
) -> dict[str, Any]:
    """What a record says of scores before and after training."""
    names = list(tasks)
    matrix = [[before[name] for name in names[: t + 1]] for t in range(len(names))]
    # Without a new task the last row is still the one after training: that is what was kept.
    matrix[-1] = [after[name] for name in names]
    learned = [after[name] for name in names if name not in kept]
    known = [before[name] - after[name] for name in kept]
    lost = sum(max(0.0, gone) for gone in known) / len(known)
    average = fsum(matrix[-1]) / len(names)
    found = {
        "avg": average,
        "last": matrix[-1][-1],
        "forgetting": lost,
        "forgetting_max_last": lost,
        "forgetting_diagonal_last": sum(known) / len(known),
        "backward_transfer": -sum(known) / len(known),
        "final_average": average,
        "plasticity": learned[0] if learned else None,
    }
    return {
        "tasks": [
            {"name": n, "test": tasks[n]} | ({"known": True} if n in kept else {}) for n in names
        ],
        "scores": {score: {"matrix": matrix, "union": []}},
        "main_score": score,
        "metrics": found,
        # Of kept tasks the matrix has it, unless there is no other row than the last.
        "before": {score: [None if n in kept and learned else before[n] for n in names]},
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


FILE = "risegrad.json"
CARD = "README.md"
BEGIN, END = "<!-- risegrad -->", "<!-- end of risegrad -->"
Rule = Mapping[str, Any]


def sign(folder: Path, rules: Sequence[Rule], meters: Sequence[ForgettingMeter] = ()) -> None:
    """Write rules and, with meters, what was measured; what another callback wrote stays."""
    content: dict[str, Any] = {"rules": [dict(rule) for rule in rules]}
    if meters:
        ends = [[meter.start for meter in meters], [meter.last for meter in meters]]
        content["forgetting"] = [_together(readings) for readings in ends]
    _write(folder, content)


def _write(folder: Path, more: dict[str, Any]) -> None:
    path, card = folder / FILE, folder / CARD
    content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    content |= more
    write_json(path, content)
    if card.is_file() or (folder / "adapter_config.json").is_file():
        old = card.read_text(encoding="utf-8") if card.is_file() else ""
        head, _, rest = old.partition(BEGIN)
        text = "\n".join([BEGIN, *_section(content), END])
        write_text(card, f"{head.rstrip()}\n\n{text}\n{rest.partition(END)[2].lstrip()}".lstrip())


def sign_kept(folder: Path, report: Mapping[str, Any]) -> None:
    """Write what a keeper says of its run."""
    _write(folder, {"keep": json.loads(json.dumps(report))})


def short(rule: Rule) -> str:
    """Such as ``Rise keep=0.5`` or ``Informed damping=0.3``."""
    return " ".join([str(rule["rule"]), *(f"{n}={value}" for n, value in _knobs(rule).items())])


def _knobs(rule: Rule) -> dict[str, Any]:
    q = rule.get("q")
    if isinstance(q, Mapping | list):
        q = dict(q) if isinstance(q, Mapping) and "keep" in q else {"q": "by block"}
    else:
        q = {} if q is None else {"q": q}
    return {"damping": rule["damping"], **q} if "damping" in rule else q


def _together(readings: Sequence[MeterReading]) -> dict[str, Any]:
    """As JSON has it: null for what is no number, such as the loss of a run that diverged.

    A score without a loss has none here, too.
    """
    scores = {
        name: ({} if score.loss is None else {"loss": _plain(score.loss)})
        | {"percent": _plain(score.percent)}
        for reading in readings
        for name, score in reading.scores.items()
    }
    rises = {name: _plain(rise) for r in readings for name, rise in r.rises.items()}
    return {"step": readings[0].step, "scores": scores, "rises": rises}


def _plain(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _section(content: Mapping[str, Any]) -> Iterator[str]:
    yield "## Training with risegrad\n"
    rules = content.get("rules", [])
    for rule in rules:
        how = f"shaped by {rule['rule']}"
        if "memory" in rule:
            how = "filtered by a memory of the old examples"
        knobs = " and ".join(f"{name} {value}" for name, value in _knobs(rule).items())
        yield f"Each {rule['on']} was {how}{f', with {knobs}' if knobs else ''}."
    if kept := content.get("keep"):
        yield f"What the model knew was kept with `risegrad.keep`. {kept['sentence']}"
    elif not rules:
        yield "Plain training: no step was shaped."
    if "forgetting" in content:
        start, end = content["forgetting"]
        yield f"\n| task | before | after step {end['step']} | loss before | loss after |"
        yield "|---|---:|---:|---:|---:|"
        for name, before in start["scores"].items():
            both, kind = (before, end["scores"][name]), "kept" if name in end["rises"] else "new"
            percents = [f"{_shown(score['percent'], 1)} %" for score in both]
            losses = [_shown(score["loss"], 4) if "loss" in score else "" for score in both]
            yield f"| {name} ({kind}) | {' | '.join(percents + losses)} |"


def _shown(value: float | None, digits: int) -> str:
    return "nan" if value is None else f"{value:.{digits}f}"
