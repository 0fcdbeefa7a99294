"""What rides in a saved model's folder: ``risegrad.json``, and a section of its model card."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from risegrad.common.atomic_files import write_json, write_text

if TYPE_CHECKING:
    from risegrad.integrations.forgetting_meter import ForgettingMeter, MeterReading

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
    """As JSON has it: null for what is no number, such as the loss of a run that diverged."""
    scores = {
        name: {"loss": _plain(score.loss), "percent": _plain(score.percent)}
        for reading in readings
        for name, score in reading.scores.items()
    }
    rises = {name: _plain(rise) for r in readings for name, rise in r.rises.items()}
    return {"step": readings[0].step, "scores": scores, "rises": rises}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _section(content: Mapping[str, Any]) -> Iterator[str]:
    yield "## Training with risegrad\n"
    rules = content.get("rules", [])
    for rule in rules:
        how = f"shaped by {rule['rule']}"
        if "memory" in rule:
            how = "filtered by a memory of what had to be kept"
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
            losses = [_shown(score["loss"], 4) for score in both]
            yield f"| {name} ({kind}) | {' | '.join(percents + losses)} |"


def _shown(value: float | None, digits: int) -> str:
    return "nan" if value is None else f"{value:.{digits}f}"
